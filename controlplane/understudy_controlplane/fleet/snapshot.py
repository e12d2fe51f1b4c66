"""One consistent view of everything, at one moment. Detection and decision see this and nothing else.

What they ask once a node of thousands is counted once a snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from understudy_controlplane.config import Mode, least
from understudy_controlplane.fleet.clock_sets import NEVER_SET, ClockSets
from understudy_controlplane.fleet.custody import Custody, custody_of
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.gang import BlackHole, BrokenOff, Gang
from understudy_controlplane.fleet.gpu import MovedGpu, Replacement, WearSample
from understudy_controlplane.fleet.holder import OtherLeader
from understudy_controlplane.fleet.hung import Hung
from understudy_controlplane.fleet.incident import (
    BLOCK_FABRIC,
    FAILED_AS_ONE,
    PORT_DOWN,
    OpenIncident,
    is_of_the_node,
)
from understudy_controlplane.fleet.job import FirstNan, Job, JobKey, LastAttempt, Refusal, WrongResult
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.maintenance import Maintenance
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView
from understudy_controlplane.fleet.node_views import NodeViews
from understudy_controlplane.fleet.operator import Acting, MoveRequest, Request, TimedHold
from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.fleet.recovery import (
    ManualRepairPlan,
    Recovery,
    RepairAttempt,
    RepairPlan,
    ReturnPlan,
    ValidationPlan,
)
from understudy_controlplane.fleet.saving import SaveRequest
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.slurm import Service, SlurmNode, SlurmReservation
from understudy_controlplane.fleet.steps import Interrupted, StepTable, restarts_without_progress
from understudy_controlplane.fleet.subject import Subject, SubjectKind
from understudy_controlplane.fleet.topology import NO_TOPOLOGY, REDUNDANT, Topology
from understudy_wire.hardware import Gpu
from understudy_wire.places import Place

LEFT_SECONDS = 3600.0
"""A node that has been quarantined for this time waits for a person where the control plane has nothing to do."""

FEW_UNHEARD = 2
FEW_UNHEARD_SHARE = 0.01
"""So many agents may be broken in any fleet."""


@dataclass(frozen=True, slots=True)
class SlurmShown:
    """What Slurm shows of itself, and of more than single nodes and jobs."""

    read_at: float | None = None  # when the Slurm part was read; None: never yet
    slurmctld_started_at: float | None = None  # None: not known
    error: str = ""  # of the latest attempt to read Slurm; empty: it succeeded
    reservations: Mapping[str, SlurmReservation] = field(default_factory=dict)
    ahead_seconds: float = 0.0  # slurmctld's clock, of the control plane's
    slurmd_timeout_seconds: int = 0  # after which Slurm sets a silent node DOWN; 0: never, or not known
    partition_states: Mapping[str, str] = field(default_factory=dict)  # in Slurm; empty: not known
    preemption: PreemptionRules | None = None  # Slurm's, where gangs may profit from them; None: they may not


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What launchers and ranks report of running jobs, and what they have saved."""

    gangs: Mapping[JobKey, Gang] = field(default_factory=dict)  # of running managed jobs that a launcher drives
    ended_well: frozenset[JobKey] = frozenset()
    """Running jobs of whose last launch every rank has ended well, by their launchers: Slurm is about to learn that."""
    past_its_gang: frozenset[JobKey] = frozenset()
    """Jobs, of these, whose ranks have reported new steps long after that: they train on, without that launcher."""
    broken_off: Mapping[JobKey, BrokenOff] = field(default_factory=dict)
    """Running jobs → the newest launch of this allocation that their launchers have ended for a crash or a hang."""
    replaced: Mapping[tuple[JobKey, int], Mapping[str, tuple[int, float]]] = field(default_factory=dict)
    """Job and restart count → nodes that its launcher took for bad → of which launch last, and when that ended."""
    tables: Mapping[JobKey, StepTable] = field(default_factory=dict)  # newest attempt of each running job
    ordered_to_save: frozenset[JobKey] = frozenset()
    """Jobs with an order to save of which not all ranks have reported the end: one may wait for it at its step."""
    unheard_gangs: Mapping[JobKey, float] = field(default_factory=dict)
    """Jobs of which no rank reports since their restart, or that of the control plane, though ranks finished steps
    before → when the job was started, or resumed after it was suspended, by slurmctld's clock.
    """
    last_attempts: Mapping[JobKey, LastAttempt] = field(default_factory=dict)
    """Managed jobs that were requeued, and pend or are about to → the attempt that has ended."""
    checkpointed_at: Mapping[JobKey, float] = field(default_factory=dict)
    """Jobs on a node that is slow or wears out → when their newest complete checkpoint was announced. Others are not
    looked up.
    """
    checkpoint_gaps: Mapping[JobKey, float] = field(default_factory=dict)
    """The same jobs → seconds between their two newest ones, where there are two."""


@dataclass(frozen=True, slots=True)
class FleetHistory:
    """What happened before this look, and still counts."""

    cancelled: tuple[Recovery, ...] = ()  # by operators, within the last week
    lost_gangs: tuple[Recovery, ...] = ()
    """Moves of gangs that failed within the last week, after their gang's attempt had been ended."""
    miscounted: tuple[Recovery, ...] = ()
    """Moves of gangs that had lost all their nodes, within the last week, where Slurm may count these jobs there since.
    """
    swaps: tuple[tuple[float, JobKey], ...] = ()  # of the last hour: when decided, which job
    spares_taken: Mapping[str, int] = field(default_factory=dict)  # of the pool within the last week, by account
    releases: tuple[tuple[float, JobKey], ...] = ()  # of the last hour: when decided, which job
    exclusions: Mapping[JobKey, Mapping[str, float]] = field(default_factory=dict)
    """Nodes that the control plane excluded for a job within the last week, and when that was decided last."""
    refusals: tuple[Refusal, ...] = ()  # of the last day: jobs that Understudy's Prolog kept off a node
    wrong_results: tuple[WrongResult, ...] = ()  # of the last days
    first_nans: tuple[FirstNan, ...] = ()  # of the last days: attempts that showed NaN, and where first
    lemon_signals: Mapping[str, LemonSignals] = field(default_factory=dict)  # by node; those without any are left out
    dealt_with: Mapping[tuple[JobKey, int], tuple[int, float]] = field(default_factory=dict)
    """Job and restart count → the newest launch that a recovery has given up, and when the last one ended."""
    disobeyed: frozenset[tuple[JobKey, int]] = frozenset()
    """Job and restart count: its launcher did not follow its orders."""
    limits: Mapping[tuple[JobKey, int], int] = field(default_factory=dict)
    """Job and restart count → its time limit in minutes before any of it was credited for a fault."""
    hangs: tuple[tuple[JobKey, Place], ...] = ()  # gangs restarted for a hang, oldest first: where they stood still
    hung: tuple[Hung, ...] = ()  # nodes that gangs waited for when they hung, within the last week
    black_holes: Mapping[str, Sequence[BlackHole]] = field(default_factory=dict)
    """Black holes of the last week by the node that was blamed."""
    attempts: tuple[RepairAttempt, ...] = ()  # of the last week, oldest first
    returns_failed: Mapping[str, Recovery] = field(default_factory=dict)
    """Nodes whose newest return to service has failed, and that recovery, within the last week."""
    returns_cancelled: Mapping[str, Recovery] = field(default_factory=dict)
    """The same of those that an operator has cancelled."""
    drains_lifted: Mapping[str, float] = field(default_factory=dict)
    """Nodes whose drain the control plane has lifted within the last hour, and when."""
    weights_left: Mapping[str, Recovery] = field(default_factory=dict)
    """Nodes whose newest change back to their own weight has failed, and that recovery, within the last week."""
    quarantined_at: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # node → when, within the last week
    quarantines: tuple[Quarantine, ...] = ()  # the same, oldest first, with the rule of each
    usual_quarantines: Mapping[str, int] | None = None
    """Rule → the most nodes that it has taken out within a day of the four weeks before; None: that is not known."""
    moved_gpus: tuple[MovedGpu, ...] = ()  # seen by this process
    replacements: Mapping[str, Replacement] = field(default_factory=dict)
    """Nodes that the provider has accepted to replace, and that are another machine since, by all of their GPUs."""
    unseen: frozenset[str] = frozenset()
    """Nodes that it has accepted to replace, and whose GPUs this process has not seen yet."""

    gpu_wear: Mapping[tuple[str, str], Sequence[WearSample]] = field(default_factory=dict)
    """Node and uuid → counters of its memory over a week, oldest first; of GPUs that have errors."""

    def machine_since(self, node: str) -> float:
        """What was found and tried before this was with another machine of that name; 0: nothing was."""
        replacement = self.replacements.get(node)
        return replacement.at if replacement is not None else 0.0


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What operators have asked for and not taken back, and the circuit breaker that they reset."""

    acting: Acting | None = None  # None: it was never noted when mode act began
    paused: str = ""  # by whom and why; empty: not paused
    halted: bool = False  # paused, and what is under way stops as well
    cancels: Mapping[int, Request] = field(default_factory=dict)  # recovery → an operator's request to cancel it
    requests: Mapping[str, Request] = field(default_factory=dict)  # node → an operator's that is not answered yet
    paused_jobs: Mapping[JobKey, str] = field(default_factory=dict)
    """Jobs for which the control plane begins nothing, and by whom and why."""
    moves: Mapping[JobKey, MoveRequest] = field(default_factory=dict)  # that operators ask for
    saves: Mapping[int, SaveRequest] = field(default_factory=dict)  # by job id
    ended_holds: Mapping[str, TimedHold] = field(default_factory=dict)  # node → a hold of which the time is over
    drills: Mapping[str, Drill] = field(default_factory=dict)  # by node, those that have not ended
    spares_wanted: int | None = None  # by an operator; None: as many as configured
    spare_choices: Mapping[str, bool] = field(default_factory=dict)
    """Node → whether an operator wants it in the spare pool. The control plane chooses the others."""
    breaker: str = ""  # why the circuit breaker is open; empty: it is closed
    breaker_holds_all: bool = False
    breaker_reset_at: float = 0.0  # when a person last closed it
    maintenances: tuple[Maintenance, ...] = ()  # under way


@dataclass(frozen=True, slots=True)
class FoundThisRound:
    """What this round of decisions has found so far."""

    fabric_lost: frozenset[str] = frozenset()
    """NVLink blocks that show the loss of their fabric in this round."""
    fabric_back: frozenset[str] = frozenset()
    """NVLink blocks that no longer show the loss of their fabric; their incident stays open for the budgets."""
    condemned_for: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Nodes that this round takes out of service, and signal and rule of what for."""
    waiting_since: Mapping[str, float] = field(default_factory=dict)
    """`Need.key` of what waited for a person in the round before → since when."""
    failed_detectors: tuple[str, ...] = ()  # of this round, for the whole fleet
    unjudged: Mapping[str, str] = field(default_factory=dict)
    """Nodes for which a detector, or what is due, failed alone in this round → its name."""
    mass_silence: str = ""
    """Why nothing is done but for proven faults, because too many agents are silent at once; empty: they are not."""
    mass_hang: str = ""  # the same, because too many gangs stopped at once


@dataclass(frozen=True)
class Snapshot:
    now: float
    started_at: float  # of this control-plane process: no report can be older
    mode: Mode
    nodes: Mapping[str, NodeView]
    jobs: Mapping[JobKey, Job]
    recoveries: tuple[Recovery, ...] = ()  # the open ones
    proposals: tuple[Recovery, ...] = ()  # that wait for approval, are approved, or were rejected a short time ago
    interrupted: Mapping[JobKey, Interrupted] = field(default_factory=dict)
    """Gangs that stood still when they were interrupted, until they finish a step again, for an hour."""
    shrunk: Mapping[JobKey, int] = field(default_factory=dict)
    """Managed running jobs that have fewer nodes than at their start, and how many they had then."""
    incidents: Mapping[Subject, OpenIncident] = field(default_factory=dict)  # the open ones
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of failure: "rack r1" → its nodes
    topology: Topology = NO_TOPOLOGY
    signals: tuple[SiteSignal, ...] = ()  # of other systems of the site: the live ones
    clock_sets: ClockSets = NEVER_SET
    other_leader: OtherLeader | None = None  # another control plane that agents report
    monotonic: float = 0.0  # at `now`, by the clock that is never set
    slurm: SlurmShown = field(default_factory=SlurmShown)
    progress: JobProgress = field(default_factory=JobProgress)
    history: FleetHistory = field(default_factory=FleetHistory)
    part_modes: Mapping[str, Mode] = field(default_factory=dict)
    """Nodes whose own mode is more careful than `mode`, which is that of all others."""
    operator: OperatorState = field(default_factory=OperatorState)
    round: FoundThisRound = field(default_factory=FoundThisRound)

    def with_round(self, found: FoundThisRound) -> Snapshot:
        """Keeps what was counted already and does not depend on the round."""
        seen = replace(self, round=found)
        seen.__dict__.update({name: kept for name in KEPT_IN_ROUND if (kept := self.__dict__.get(name)) is not None})
        return seen

    @property
    def slurm_now(self) -> float:
        """Time of slurmctld's clock, which dates all times of Slurm's."""
        return self.now + self.slurm.ahead_seconds

    def mode_of(self, nodes: Iterable[str], job: JobKey | None = None) -> Mode:
        """The most careful mode of these nodes and of the job; where none is named, that of the fleet."""
        if not self.part_modes:
            return self.mode
        names = (*nodes, *(self.nodes_of_job(job) if job is not None else ()))
        return least((self.mode, *(self._mode_of_node.get(name, self.mode) for name in names)))

    @cached_property
    def _mode_of_node(self) -> Mapping[str, Mode]:
        """A job is in one mode, the most careful of its nodes, and with it each of them."""
        found = dict(self.part_modes)
        for job in self.jobs.values():
            names = job.slurm.nodes if job.slurm.holds_nodes else ()
            mode = least((self.mode, *(self.part_modes.get(name, self.mode) for name in names)))
            if mode is not self.mode:
                found |= {name: mode.at_most(found.get(name, mode)) for name in names}
        return found

    def is_in_observed_part(self, name: str) -> bool:
        """Others of the fleet are in a mode that acts, and this node is not."""
        return bool(self.part_modes) and self.mode_of([name]) is Mode.OBSERVE

    def nodes_of_job(self, key: JobKey) -> tuple[str, ...]:
        """Those that it has, or, where it pends, those of its last attempt."""
        job, last = self.jobs.get(key), self.progress.last_attempts.get(key)
        if job is None or job.slurm.ended:
            return ()
        return tuple(job.slurm.nodes) if job.slurm.holds_nodes or last is None else tuple(last.nodes)

    def configured_mode(self, subject: Subject) -> Mode:
        """Mode of the nodes that an incident is about, whatever jobs run there."""
        names = self.nodes_of(subject.name)
        if subject.kind is SubjectKind.GANG:
            names = next((self.nodes_of_job(key) for key in self.jobs if str(key) == subject.name), ())
        return least((self.mode, *(self.part_modes.get(name, self.mode) for name in names)))

    def custody(self, name: str) -> Custody:
        found = self._custody.get(name)
        if found is None:
            found = self._custody[name] = custody_of(self, self.nodes[name])
        return found

    @cached_property
    def _custody(self) -> dict[str, Custody]:
        return {}

    def missing(self, job: Job, seats: Collection[str]) -> int:
        """How many nodes besides the seats Slurm, or an administrator, has taken out of the running job: requeued, it
        asks for as many as at its start.
        """
        return max(0, self.shrunk.get(job.key, 0) - len({*job.slurm.nodes, *seats})) if job.running else 0

    def attempt_given_up(self, job: Job) -> int:
        """The restart count of the attempt that a move gives up: of a job that was requeued, the one that has ended."""
        last = self.progress.last_attempts.get(job.key)
        return last.restart_count if last is not None else job.slurm.restart_count

    def restarts_without_progress(self, job: JobKey) -> int:
        """Restarts of its gang because it hung."""
        table = self.progress.tables.get(job)
        now = table.place if table is not None else Place()
        return restarts_without_progress((place for key, place in self.history.hangs if key == job), now)

    def refused_at(self, refusal: Refusal) -> tuple[float, float]:
        """Time of the refusal by slurmctld's clock: as if all clocks agreed, and by how far they are apart now. Clocks
        may have been set since the refusal: either may be right.
        """
        node = self.nodes.get(refusal.node)
        ahead = node.clock_ahead_seconds if node is not None else 0.0
        return refusal.at, refusal.at - ahead + self.slurm.ahead_seconds

    def ago(self, seconds: float) -> float:
        """The time before which something is older than that: for ages on which a guard or a probation depends."""
        return self.clock_sets.ago(seconds, self.now, self.monotonic)

    def job_on(self, node: str) -> list[Job]:
        """Running jobs on a node."""
        return self._jobs_on.get(node, [])

    def gpus_on(self, node: str) -> Sequence[Gpu]:
        """GPUs that the node's agent reported."""
        return self.nodes[node].gpus if node in self.nodes else ()

    @cached_property
    def headless(self) -> dict[str, list[Job]]:
        """Node → running jobs that Slurm took it from, though their launcher was there: it is gone, with its ranks."""
        found: dict[str, list[Job]] = {}
        for key, gang in self.progress.gangs.items():
            job = self.jobs.get(key)
            if job is not None and job.running and gang.host not in job.slurm.nodes:
                found.setdefault(gang.host, []).append(job)
        return found

    def given_up_by_launcher(self, key: JobKey) -> dict[str, float]:
        """Nodes that the last launch had, without which a launcher has too few → when that ended. It waits for the job
        to be requeued.
        """
        gang, job = self.progress.gangs.get(key), self.jobs.get(key)
        if gang is None or job is None or not job.running or not gang.state.asks_requeue:
            return {}
        ends = self.progress.replaced.get((key, job.slurm.restart_count), {})
        return {name: at for name, (launch, at) in ends.items() if launch == gang.attempt.launch}

    @cached_property
    def _jobs_on(self) -> dict[str, list[Job]]:
        return _by_node(job for job in self.jobs.values() if job.running)

    def views_of(self, job: Job) -> list[NodeView]:
        """Those of the job's nodes that Slurm shows: it may have none of a node, or one that cannot be read."""
        return [self.nodes[name] for name in job.slurm.nodes if name in self.nodes]

    def holders_of(self, node: str) -> list[Job]:
        """Jobs with processes there, in whatever state Slurm shows them."""
        return self._holders.get(node, [])

    @cached_property
    def _holders(self) -> dict[str, list[Job]]:
        return _by_node(job for job in self.jobs.values() if job.slurm.holds_nodes)

    @cached_property
    def notable(self) -> tuple[NodeView, ...]:
        """All nodes but those that `NodeViews` has for plain, in the order of `nodes`."""
        nodes = self.nodes
        return tuple(nodes.notable_views() if isinstance(nodes, NodeViews) else nodes.values())

    @property
    def plain(self) -> int:
        return len(self.nodes) - len(self.notable)

    @cached_property
    def in_slurm(self) -> Mapping[str, SlurmNode | None]:
        """What Slurm shows of each node of the fleet; None: nothing."""
        nodes = self.nodes
        return nodes.slurm if isinstance(nodes, NodeViews) else {name: node.slurm for name, node in nodes.items()}

    @cached_property
    def set_apart(self) -> tuple[NodeView, ...]:
        """Nodes about which Slurm or their record says anything but that they are in service, in the order of `nodes`.
        Rules for what administrators, Slurm and the control plane have done to a node look at no other.
        """
        in_service, usable = NodeState.IN_SERVICE, Service.USABLE
        return tuple(
            node
            for node in self.notable
            if (record := node.record).state is not in_service
            or record.weight is not None
            or (slurm := node.slurm) is None
            or slurm.service is not usable
        )

    @cached_property
    def unusual(self) -> tuple[NodeView, ...]:
        """Nodes of which rules for hardware may find something, in the order of `nodes`: they look at no other."""
        return tuple(node for node in self.notable if not node.usual)

    @cached_property
    def at_fault(self) -> frozenset[str]:
        """Nodes that the control plane has taken out of service, those in repair included."""
        return frozenset(node.name for node in self.set_apart if node.record.at_fault)

    @property
    def quarantined(self) -> int:
        return len(self.at_fault)

    @cached_property
    def manual(self) -> frozenset[str]:
        """Those of them that wait for a person, or for a job on them to end, and not for the control plane."""
        return frozenset(
            node.name
            for node in self.set_apart
            if node.state is NodeState.MANUAL_REPAIR or (self._is_left(node) and self.holders_of(node.name))
        )

    @cached_property
    def left(self) -> frozenset[str]:
        """Those of them that wait for a person where the control plane repairs no node."""
        return frozenset(
            node.name for node in self.set_apart if node.state is NodeState.MANUAL_REPAIR or self._is_left(node)
        )

    def _is_left(self, node: NodeView) -> bool:
        record = node.record
        drained = record.state is NodeState.QUARANTINED and record.drained_at is not None
        return drained and record.since < self.ago(LEFT_SECONDS)

    @cached_property
    def gangs_in(self) -> dict[str, int]:
        """Domain of failure → how many managed gangs have a node there."""
        found: Counter[str] = Counter()
        for job in self.jobs.values():
            if job.managed and job.running:
                found.update({domain for name in job.slurm.nodes for domain in self.domains_of.get(name, ())})
        return found

    @cached_property
    def not_well(self) -> frozenset[str]:
        """Nodes that Understudy has taken out of service, except for a validation."""
        return frozenset(
            node.name for node in self.set_apart if node.state in OUT_OF_SERVICE and not node.record.tested_in_service
        )

    def is_target(self, name: str) -> bool:
        """It is the name of a node, or of a domain as `understudy topology show` has it."""
        return name in self.nodes or name in self.domains or name in self.topology.by_label

    @cached_property
    def domains_of(self) -> dict[str, list[str]]:
        """Node → the domains of failure that it is in."""
        found: dict[str, list[str]] = {}
        for domain, names in self.domains.items():
            for name in names:
                found.setdefault(name, []).append(domain)
        return found

    def nodes_of(self, target: str) -> tuple[str, ...]:
        """Those that a signal's target is or contains, of the fleet's nodes."""
        if target in self.nodes:
            return (target,)
        domain = self.topology.by_label.get(target)
        members = domain.nodes if domain is not None else self.domains.get(target, ())
        return tuple(name for name in members if name in self.nodes)

    @cached_property
    def under_maintenance(self) -> frozenset[str]:
        """Nodes of which the maintenance is not over, those that wait for their turn included."""
        return frozenset(name for one in self.operator.maintenances for name in one.unfinished)

    @cached_property
    def worked_on(self) -> frozenset[str]:
        """Nodes of a maintenance that takes all its nodes at the same time: people may work on each of them, or on what
        they all depend on.
        """
        return frozenset(
            name for one in self.operator.maintenances if one.at_once >= len(one.unfinished) for name in one.unfinished
        )

    @cached_property
    def signals_on(self) -> dict[str, list[SiteSignal]]:
        """Node → the live signals that name it, or a domain that it is in."""
        return self._signals_on(lambda _target: True)

    @cached_property
    def threats_to(self) -> dict[str, list[SiteSignal]]:
        """The same without those of domains that can fail without their nodes: rails and spines."""
        spared = {one.label for one in self.topology.domains if one.kind in REDUNDANT}
        return self._signals_on(lambda target: target not in spared)

    def _signals_on(self, counts: Callable[[str], bool]) -> dict[str, list[SiteSignal]]:
        found: dict[str, list[SiteSignal]] = {}
        for signal in self.signals:
            targets = [target for target in signal.targets if counts(target)]
            for name in dict.fromkeys(name for target in targets for name in self.nodes_of(target)):
                found.setdefault(name, []).append(signal)
        return found

    @cached_property
    def quarantined_in(self) -> dict[str, int]:
        """Domain → how many of its nodes the control plane has taken out of service."""
        return {domain: sum(name in self.at_fault for name in names) for domain, names in self.domains.items()}

    @cached_property
    def failed_domain_of(self) -> dict[str, str]:
        """Node → the domain that failed as a whole, and counts as one failure. Nodes that are condemned for another
        fault in this round count by themselves, and those that were before. So do nodes of a second domain: where a row
        of racks fails, or seems to, the budgets count nodes again.
        """
        first = self.failed_domain
        return {
            name: first.subject.name
            for name in (self.domains.get(first.subject.name, ()) if first is not None else ())
            if first is not None and not self._failed_by_itself(name, first.rule)
        }

    @cached_property
    def failed_domain(self) -> OpenIncident | None:
        failed = [one for one in self.incidents.values() if one.rule in FAILED_AS_ONE]
        return min(failed, key=lambda one: (one.opened_at, one.id), default=None)

    def _failed_by_itself(self, node: str, domain_rule: str) -> bool:
        own, new = self.incident_of(node), self.round.condemned_for.get(node)
        faults = [*([(own.signal, own.rule)] if own is not None else []), *([new] if new is not None else [])]
        return any(is_of_the_node(signal, rule, domain_rule) for signal, rule in faults)

    @cached_property
    def without_fabric(self) -> frozenset[str]:
        """Nodes of NVLink blocks whose fabric has failed, and behind a switch that has: no gang can work there."""
        failed = {subject.name for subject, one in self.incidents.items() if one.rule == BLOCK_FABRIC}
        blocks = (
            name
            for label in (failed - self.round.fabric_back) | self.round.fabric_lost
            for name in self.domains.get(label, ())
        )
        return frozenset((*blocks, *self.behind_failed_switch))

    @cached_property
    def behind_failed_switch(self) -> dict[str, OpenIncident]:
        """Nodes with a port that is down since those of others went down with it, and the incident of their domain."""
        return {
            name: incident
            for subject, incident in self.incidents.items()
            if incident.rule == PORT_DOWN and subject.kind is SubjectKind.DOMAIN
            for name in self.domains.get(subject.name, self.nodes)  # the whole fleet is no domain
            if name in self.nodes and self.nodes[name].has_port_down
        }

    @cached_property
    def unheard(self) -> int:
        """How many nodes that Slurm would use have not reported since this process started, or do so just now."""
        away = (node for node in self.notable if node.heard_at is None or node.state is NodeState.UNKNOWN)
        return sum(node.service is Service.USABLE for node in away)

    @cached_property
    def few_unheard(self) -> bool:
        """True if nearly all were heard: that the others are not heard is their own fault, and not the start's."""
        few = max(FEW_UNHEARD, int(FEW_UNHEARD_SHARE * len(self.nodes)))
        return self.unheard <= few and self.unheard <= len(self.nodes) / 4

    def incident_of(self, node: str) -> OpenIncident | None:
        """The open one of the node itself."""
        return self.incidents.get(Subject.of_node(node))

    def recovery_on(self, node: str) -> Recovery | None:
        """The one that works on this node itself: repairs it, tests it, gives it back."""
        kinds = RepairPlan | ValidationPlan | ManualRepairPlan | ReturnPlan
        return next((one for one in self.recoveries if isinstance(one.plan, kinds) and node in one.plan.nodes), None)

    def recovery_of(self, job: JobKey) -> Recovery | None:
        """The one that moves it. Releasing a job from Slurm's hold moves no gang."""
        return self._moves.get(job)

    @cached_property
    def _moves(self) -> dict[JobKey, Recovery]:
        moves = [(one.swap.job, one) for one in self.recoveries if one.swap is not None]
        return dict(reversed(moves))  # the first one of a job counts


KEPT_IN_ROUND = (
    "_mode_of_node",
    "_jobs_on",
    "_holders",
    "in_slurm",
    "notable",
    "set_apart",
    "unusual",
    "at_fault",
    "gangs_in",
    "not_well",
    "domains_of",
    "unheard",
    "_moves",
)


def _by_node(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        for node in dict.fromkeys(job.slurm.nodes):
            found.setdefault(node, []).append(job)
    return found
