"""What must hold at every moment of a simulation, each promise with its name."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.simulator.cluster import FABRIC, LICENCE
from tests.simulator.ledger import LATE_SECONDS, Effect, Ledger, Violation
from tests.simulator.slurm import REQUEUE_DELAY_SECONDS
from understudy_controlplane.config import Config
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.repair_cycle import attempts_by_node, concerned, due
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.detect import DETECTORS, detect
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.node import IN_REPAIR, OUT_OF_SERVICE, NodeRecord, NodeState, ValidationOrigin
from understudy_controlplane.fleet.node_views import NodeViews
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    SEATS_PREFIX,
    AllocationSwapPlan,
    DrainPlan,
    LetGoPlan,
    PagePlan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RepairPlan,
    ReturnPlan,
    StepName,
    StepStatus,
    SwapPlan,
    ValidationPlan,
    job_of,
)
from understudy_controlplane.fleet.saving import SavingGang
from understudy_controlplane.fleet.site_signal import SIGNAL_PREFIX
from understudy_controlplane.fleet.slurm import Service, SlurmJob
from understudy_controlplane.fleet.snapshot import LEFT_SECONDS, Snapshot
from understudy_controlplane.observe.recovery_history import RecoveryHistory
from understudy_controlplane.store.queries import DecisionFilter, Queries
from understudy_wire.ranks import OrderState

if TYPE_CHECKING:
    from tests.simulator.cluster import Gang, Machine
    from tests.simulator.world import World
    from understudy_controlplane.app import Core
    from understudy_controlplane.fleet.slurm import SlurmJob

GRACE_SECONDS = 100.0
"""How long the control plane may take to put right what it sees, while it runs and Slurm answers."""

STEP_SECONDS_MAX = 420.0
"""No step of these simulations may take longer."""

AFTER_CRASH_SECONDS = 15.0
"""How long after a crash of slurmctld a drain that is not there counts as lost in it."""

SCHEDULED_SECONDS = 5.0
"""Until Slurm has started a job that is eligible and has its nodes."""

STARTED_JUST_NOW_SECONDS = 10.0
"""A job that has started since may have been unknown to the control plane when it reserved the node."""

SILENT_SECONDS_MAX = 200.0
"""Until a person sees that no agent reports."""

ORDER_SECONDS_MAX = 240.0
"""Until an order to save is agreed by all ranks, or withdrawn."""

STOOD_SECONDS = 60.0
"""A gang that had stopped for longer than this is known to have stood still."""

TOGETHER_MIN = 3
"""Gangs that stand still, nodes of one switch that fail, or nodes that are silent: so many may have one cause."""

MANY_SHARE = 0.3
"""Share of all nodes: so many are silent at once for a cause outside them."""

MOST_SHARE = 0.75
"""Share of the nodes of a switch: so many fail at once with it."""

DECISIONS_READ = 20
"""Newest decisions about a node."""

POOL = "understudy_spares"
MANY_LAUNCHES = 1_000_000
"""More than a gang has in one allocation."""

BESIDE_ANY_OTHER = frozenset(
    {
        StepName.RESTORE_WEIGHT,  # in or out of service, drained or not: a node at fault does not wait for it
        StepName.EXCLUDE_NODES,  # for the job, as all that follows
        StepName.START_JOB,
        StepName.RELEASE_SEATS,  # those of the gang's new nodes
        StepName.ORDER_RESTART,
        StepName.AWAIT_PROCESSES,
        StepName.AWAIT_FIRST_STEP,
        StepName.CREDIT_TIME,
    }
)
"""Steps that change nothing of a node which another recovery changes."""

CHANGES_A_RUNNING_JOB = ("requeue_job", "requeue_failed_job", "keep_batch_host", "set_time_limit")
"""What is never done to a job whose owner has opted out. Seats that were held are given up, and an attempt that was
ended before is started again.
"""
TAKES_NODE = frozenset({Verb.HOLD, Verb.QUARANTINE, Verb.RETIRE})
DRAINS = (StepName.DRAIN_NODES,)
CALLS: dict[str, tuple[StepName, ...]] = {
    "drain_node": DRAINS,
    "down_nodes": (StepName.DOWN_NODES, StepName.REQUEUE_JOB),
    "keep_batch_host": (StepName.DOWN_NODES, StepName.REQUEUE_JOB),
    "resume_node": (StepName.RESUME_NODE, StepName.LIFT_DRAIN),
    "reboot_node": (StepName.REBOOT_NODE,),
    "set_weight": (StepName.RAISE_WEIGHT, StepName.RESTORE_WEIGHT),
    "create_reservation": (StepName.HOLD_SEATS, StepName.FILL_POOL, StepName.RETURN_SPARES, StepName.HOLD_NODE),
    "set_reservation_nodes": (StepName.HOLD_SEATS, StepName.FILL_POOL, StepName.TAKE_SPARES, StepName.RETURN_SPARES),
    "delete_reservation": (StepName.RELEASE_SEATS, StepName.DELETE_SEATS, StepName.TAKE_SPARES, StepName.RELEASE_NODE),
    "set_job_reservation": (StepName.BIND_JOB, StepName.RELEASE_SEATS, StepName.DELETE_SEATS),
    "submit_job": (StepName.RESET_GPU, StepName.RUN_VALIDATION, StepName.TEST_NETWORK),
    "cancel_job": (StepName.RELEASE_NODE,),
    "requeue_job": (StepName.REQUEUE_JOB,),
    "requeue_failed_job": (StepName.REQUEUE_JOB,),
    "start_job": (StepName.START_JOB, StepName.RELEASE_JOB),
    "release_job": (StepName.RELEASE_JOB,),
    "set_excluded_nodes": (StepName.EXCLUDE_NODES, StepName.ALLOW_NODES),
    "set_time_limit": (StepName.CREDIT_TIME,),
}
"""What a step may call."""


@dataclass(frozen=True)
class Rest:
    """What stands still, and for how long that may be so before it is listed."""

    words: str
    seconds: float
    nodes: tuple[str, ...] = ()


FOR_ALL = frozenset({NeedKind.AGENTS_SILENT, NeedKind.BREAKER, NeedKind.ONLY_OBSERVED})
"""While a person is needed for one of these, nothing else is promised."""

NEXT_RUNG_SECONDS = 60.0
"""A repair or a test that was begun this lately may go on at the end: the rung before it may take minutes to fail."""
DEAD_NODE_SECONDS = 400.0
"""Limit as long as the one on a dead node: it waits five minutes for the node to begin its job."""


class Invariants:
    def __init__(self, world: World) -> None:
        self._world = world
        self.ledger = Ledger(world)
        self.effects = 0
        self.errors_excused = False
        """The database was away since the last round: what failed for that is no error of the control plane."""
        self.notified_of: set[str] = set()
        """Nodes and jobs of which a person was notified, because a guard has held back what they need."""
        self._errors = 0
        self.moved_jobs: set[int] = set()
        """Jobs that a person wanted moved: that is done in a pause as well."""
        self._newest_before_pause: int | None = None  # while it is paused
        self._halted = False
        self._only_observes = self._only_observes_next = False  # as an administrator has set it
        self.left_to_person: set[int] = set()
        """Jobs of which an operator has cancelled a move: the control plane leaves them to that person."""
        self._opted_out: set[int] = set()
        self._paused_jobs: dict[int, tuple[int, float]] = {}
        """The newest recovery when the job was last not paused, and when its pause ends by the control plane's clock:
        one that is set back lets the pause go on.
        """
        self._wrong_since: dict[str, float] = {}
        self._unlisted_since: dict[str, float] = {}
        self._at_fault: set[str] = set()
        self._out_since: dict[str, float] = {}
        self._failed_switches: list[set[str]] = []
        self._asked: dict[str, float] = {}
        self.drained_by_person: set[str] = set()
        self._drained_for_prolog: set[str] = set()
        self._back_from_outage: set[str] = set()
        """Slurm itself kept them DOWN, and their validation or repair decides since."""
        self._drained_unseen: dict[str, float] = {}
        """Drains by a person, by the control plane's clock, since which it has not read Slurm."""
        self._drained_unread: set[str] = set()
        """Drains by the control plane, which has not read that back: killed, it cannot know whether a person resumed
        it.
        """
        self._resumed_at: dict[str, float] = {}
        self._vouched_at: dict[str, float] = {}
        self._slurm_crashed_at = -math.inf
        self._slurm_read_at = math.inf
        """When the control plane began its last reading, or its process, which has none yet."""
        self._last_read_at = -math.inf  # the same of any process of it
        self._restores_seen = 0
        self._proposed_since: dict[tuple[int, Attempt, int], float] = {}  # to this process: job, attempt, number
        self._history: RecoveryHistory  # of the control plane that runs
        self._clock_jumps = 0
        self._known: tuple[Recovery, ...] = ()
        self._moved_at: dict[tuple[int, int, StepStatus], float] = {}
        self._fine_since = math.inf
        self._left_to_people: set[str] = set()

    # -- what the simulation reports -------------------------------------------------------------------------------

    def started(self) -> None:
        assert self._world.core is not None
        self._read_history(self._world.core)
        self.ledger.control_plane_started()
        self._errors = 0
        self._slurm_read_at = self._world.now
        self._fine_since = self._world.now
        self._wrong_since.clear()
        self._unlisted_since.clear()
        self._proposed_since.clear()

    def asked(self, verb: Verb, node: str) -> None:
        self._asked[node] = self._world.now
        if verb is Verb.RELEASE:
            self._vouched_at[node] = self._world.now
        if verb in TAKES_NODE:
            self._world.cluster.machines[node].accused_at = self._world.now

    def failed_together(self, nodes: set[str]) -> None:
        """Nodes of a domain that die at once are one fault for the budgets, where they are most of its nodes."""
        leaves = [set(unit.nodes) for unit in self._world.slurm.topology() if unit.level == 0]
        failed = [set(one) for one in self._world.scenario.domains.values() if nodes.issuperset(one)]
        within = [leaf for leaf in leaves if not any(leaf <= one for one in failed)]
        failed += [one for one in within if len(one & nodes) >= max(TOGETHER_MIN, MOST_SHARE * len(one))]
        self._failed_switches += failed

    def switched(self, verb: Verb) -> None:
        core = self._world.core
        assert core is not None
        if verb in (Verb.MODE_OBSERVE, Verb.MODE_CONFIGURED):
            self._only_observes_next = verb is Verb.MODE_OBSERVE
            return
        if verb is Verb.RESET_BREAKER:
            self.ledger.breaker_reset_at = self._world.now
            return
        newest = max((recovery.id for recovery in core.stores.recoveries.newest(1)), default=0)
        self._newest_before_pause = None if verb is Verb.RESUME else newest
        self._halted = verb is Verb.PAUSE_NOW

    def begins_round(self) -> None:
        """Begins a round in which the control plane learns what was switched."""
        self._only_observes = self._only_observes_next

    def opted_out(self, job_id: int) -> None:
        """Its owner leaves the gang to itself: no promise is made for it any more, but that it is left alone."""
        self.left_to_person.add(job_id)
        self._opted_out.add(job_id)

    def paused_job(self, job_id: int, until: float) -> None:
        core = self._world.core
        assert core is not None
        newest = max((recovery.id for recovery in core.stores.recoveries.newest(1)), default=0)
        self._paused_jobs[job_id] = (newest, until)

    def cancelled(self, recovery: Recovery) -> None:
        """Notes a recovery that an operator cancelled, or rejected before it began."""
        if isinstance(recovery.plan, ReturnPlan):  # its node is held then
            self._asked.update(dict.fromkeys(recovery.plan.nodes, self._world.now))
        if isinstance(recovery.plan, DrainPlan):  # a node that is not drained yet stays in service
            open_ones = {node.name for node in self._world.line.nodes_now() if not node.draining}
            self._vouched_at.update(dict.fromkeys(open_ones.intersection(recovery.plan.nodes), self._world.now))
        job = job_of(recovery.plan)
        self.left_to_person |= {job.job_id} if job is not None else set()

    def was_drained_by_person(self, node: str) -> None:
        self.drained_by_person.add(node)
        self._drained_unseen[node] = self._world.clock.now()

    def drained_for_prolog(self, node: str) -> None:
        """Slurm has drained it: the control plane takes that over, whatever its budget."""
        self._drained_for_prolog.add(node)

    def resumed_by_person(self, node: str, *, down_by_slurm: bool) -> None:
        """`down_by_slurm`: that was no drain of the control plane. Slurm may resume such a node, too."""
        self.drained_by_person.discard(node)
        self._vouched_at[node] = self._world.now
        crashed = self._world.now - self._slurm_crashed_at < AFTER_CRASH_SECONDS
        crashed |= self._slurm_crashed_at > self._last_read_at
        if not crashed and not down_by_slurm and node not in self._drained_unseen and node not in self._drained_unread:
            self._resumed_at[node] = min(self._world.now, self._slurm_read_at)

    def freed_by_person(self, node: str) -> None:
        """Its reservation was deleted, during its repair or validation: who does that answers for the node."""
        self._vouched_at[node] = self._world.now

    def preempted(self, victim: int, by: int) -> None:
        """Notes that Slurm preempted it, which it does for any job. On a spare of a gang it is to be the job that was
        named before.
        """
        jobs = self._world.jobs()
        if jobs[by].name.startswith("understudy-"):
            raise Violation("preempts-only-what-it-named", f"job {victim} was preempted for {jobs[by].name}")
        for plan in (one.plan for one in self._known if isinstance(one.plan, PoolSwapPlan)):
            on_spare = plan.job.job_id == by and not set(plan.spares).isdisjoint(jobs[victim].nodes)
            if on_spare and jobs[by].reservation and victim not in plan.preempted:
                words = f"job {victim} was preempted for job {by} on its spare, and its recovery has not named it"
                raise Violation("preempts-only-what-it-named", words)

    def slurm_crashed(self) -> None:
        """A node that was resumed since the last reading may be one of which the crash has lost the drain."""
        self._slurm_crashed_at = self._world.now
        read_at = self._last_read_at
        self._resumed_at = {name: at for name, at in self._resumed_at.items() if self._vouched_at[name] <= read_at}

    def _read_history(self, core: Core) -> None:
        """Again when the clock was set: times in the database are others then."""
        self._history, self._clock_jumps = RecoveryHistory(core.stores.recoveries), core.loop.pulse.clock_jumps_total

    def activity(self) -> tuple[object, ...]:
        """Changes whenever the control plane did something."""
        core = self._world.core
        snapshot = core.loop.pulse.snapshot if core else None
        states = tuple(node.state for node in snapshot.nodes.values()) if snapshot else ()
        steps = tuple((one.id, step.status) for one in self._known for step in one.steps)
        return (self.effects, states, steps)

    # -- effects ---------------------------------------------------------------------------------------------------

    def before_effect(self, effect: Effect) -> None:
        world = self._world
        assert world.core is not None
        if world.scenario.settings.observes or self._only_observes:
            raise Violation("observe-writes-nothing", f"{effect} in mode observe")
        open_ones = world.core.stores.recoveries.running()
        begun = [
            (recovery, step)
            for recovery in open_ones
            for step in recovery.steps
            if step.status is StepStatus.INTENDED and step.name in CALLS[effect.call]
        ]
        if not begun:
            raise Violation("no-effect-without-decision", f"{effect}, and no recovery has begun a step that does this")
        if self._halted and all(recovery.ends_as is not RecoveryStatus.CANCELLED for recovery, _ in begun):
            raise Violation("a-halt-halts", f"{effect} in a pause that halts what is under way")
        self._touches_nothing_of_others(effect)
        self.ledger.before(effect, [recovery for recovery, _ in begun])
        if effect.call == "requeue_job":
            self._hangs([recovery for recovery, _ in begun], effect)

    def _hangs(self, recoveries: Iterable[Recovery], effect: Effect) -> None:
        """A gang that is restarted for a hang stood still until a moment ago, was not suspended, and did not stop with
        most others.
        """
        plans = [one.plan for one in recoveries if isinstance(one.plan, PoolSwapPlan) and one.plan.hang]
        jobs = {str(self._world.jobs()[one.job.job_id].address): one.job.job_id for one in plans}
        job_id = jobs.get(str(effect.arguments[0]))
        for gang in self._world.cluster.gangs:
            well = self._world.now - gang.stuck_at
            works = gang.computes and well > LATE_SECONDS
            shares = gang.hung_on == FABRIC and self._stand_together() >= TOGETHER_MIN and not self._lost_port(gang)
            if gang.job_id == job_id and (gang.suspended or works or shares):
                words = gang.hung_on or f"at work for {well:.0f} s"
                raise Violation("only-a-gang-that-hangs-is-restarted", f"{effect} for a hang, and it is {words}")

    def _lost_port(self, gang: Gang) -> bool:
        """A port of it went down since it stopped: that stops it as well, and does not let it go on by itself."""
        machines = self._world.cluster.machines
        return any(gang.stopped_at < machines[name].port_down_since < math.inf for name in gang.seats)

    def _stand_together(self) -> int:
        """Managed ones: of others the control plane does not know whether they are to make steps. One that ended just
        after it had stopped is not known to have stood, and one that lost a port has a cause of its own.
        """
        jobs = self._world.jobs()
        standing = [one for one in self._world.cluster.gangs if one.hung_on == FABRIC and one.stopped_at < math.inf]
        known = [one for one in standing if one.ended_at - one.stopped_at > STOOD_SECONDS and not self._lost_port(one)]
        return sum(one.job_id in jobs and "understudy" in jobs[one.job_id].comment for one in known)

    def after_effect(self, effect: Effect) -> None:
        self.effects += 1
        self.ledger.after(effect)
        if effect.call == "resume_node":
            self._resumed_at.pop(effect.arguments[0], None)
        if effect.call == "drain_node":
            self._drained_unread.add(effect.arguments[0])

    def _touches_nothing_of_others(self, effect: Effect) -> None:
        first = effect.arguments[0]
        jobs = self._world.jobs()
        words = ""
        match effect.call:
            case "drain_node" | "resume_node" if first in self.drained_by_person:
                words = "an administrator has drained the node"
            case "down_nodes" if not self.drained_by_person.isdisjoint(first):
                words = "an administrator has drained one of the nodes"
            case "drain_node" | "down_nodes":
                for name in [first] if effect.call == "drain_node" else first:
                    self._has_evidence(effect, self._world.cluster.machines[name])
            case (
                "requeue_job"
                | "keep_batch_host"
                | "requeue_failed_job"
                | "set_job_reservation"
                | "start_job"
                | "release_job"
                | "set_time_limit"
                | "set_excluded_nodes"
            ):
                released = effect.call in ("release_job", "start_job") and first in self._world.refused
                undone = first in self._opted_out and effect.call not in CHANGES_A_RUNNING_JOB
                managed = released or undone or "understudy" in jobs[first].comment
                words = "" if managed else "the job is not managed"
            case "cancel_job":
                words = "" if jobs[first].name.startswith("understudy-") else "the job is not the control plane's"
            case "create_reservation" | "set_reservation_nodes" if first.startswith(SEATS_PREFIX):
                words = self._why_not_seats(int(first.removeprefix(SEATS_PREFIX)), effect.arguments[1])
            case "create_reservation" | "set_reservation_nodes" | "delete_reservation":
                words = "" if first.startswith("understudy_") else "the reservation is not the control plane's"
        if words:
            raise Violation("nothing-of-others-touched", f"{effect}, and {words}")

    def _why_not_seats(self, gang: int, nodes: Iterable[str]) -> str:
        """Spares are nodes without other jobs, or with jobs that Slurm preempts by its rules. The gang's own nodes may
        have got another job since it ended.
        """
        core, jobs, now = self._world.core, self._world.jobs(), self._world.slurm.now
        assert core is not None
        plans = [one.plan for one in core.stores.recoveries.running() if isinstance(one.plan, PoolSwapPlan)]
        plan = next(one for one in plans if one.job.job_id == gang)
        spares = set(plan.spares).intersection(nodes)
        for job in jobs.values():
            runs = job.state == "RUNNING" and now - (job.start_at or 0) > STARTED_JUST_NOW_SECONDS
            if not runs or job.job_id == gang or spares.isdisjoint(job.nodes):
                continue
            if job.job_id not in plan.preempted:
                return f"job {job.job_id} runs there"
            if not self._world.slurm.may_preempt(job.job_id, gang):
                return f"Slurm does not preempt job {job.job_id}"
        return ""

    def _has_evidence(self, effect: Effect, machine: Machine) -> None:
        now = self._world.now
        was_cut = now - machine.cut_until < LATE_SECONDS
        was_unreachable = now - machine.unreachable_until < LATE_SECONDS and not was_cut
        measured = not machine.alive or machine.port_is_down(now)
        machine.slowed_at = now if now < machine.slow_until else machine.slowed_at
        if measured or self._is_asked_for(machine.name):
            machine.accused_at = now
        elif self._may_be_dead(machine) if was_unreachable else was_cut and not self._makes_progress(machine):
            machine.accused_at = machine.inferred_at = now
        if not self.ledger.is_accused(machine):
            words = "nothing has happened to the node, or not since it was returned"
            raise Violation("no-decision-without-evidence", f"{effect}, and {words}")
        if max(machine.accused_at, machine.slowed_at) < self._resumed_at.get(machine.name, -math.inf):
            raise Violation("a-resume-stands", f"{effect}, and nothing has happened since a person resumed the node")

    def _may_be_dead(self, machine: Machine) -> bool:
        """The control plane alone cannot reach it: Slurm would start a job there, if it is dead, or its gang stood
        still as it was cut off.
        """
        if _jobs_on(self._world, machine.name):
            return not self._makes_progress(machine)
        return machine.name not in {name for one in self._world.slurm.reservations() for name in one.nodes}

    def _is_asked_for(self, node: str) -> bool:
        """An operator wants it out of service, and has no answer yet: that stands, also after a person resumed it."""
        core = self._world.core
        snapshot = core.loop.pulse.snapshot if core is not None else None
        request = snapshot.operator.requests.get(node) if snapshot is not None else None
        return request is not None and request.verb in TAKES_NODE

    def _makes_progress(self, machine: Machine) -> bool:
        """True if any job on the node does, and has for long enough to be known. A launcher may have it as a spare."""
        now, gangs = self._world.now, self._world.cluster.gangs
        works = {gang.job_id for gang in gangs if gang.computes and now - gang.stuck_at > LATE_SECONDS}
        stopped = {gang.job_id for gang in gangs if gang.job_id not in works or machine.name not in gang.seats}
        jobs = self._world.jobs().values()
        return any(job.state == "RUNNING" and machine.name in job.nodes and job.job_id not in stopped for job in jobs)

    # -- after a tick ----------------------------------------------------------------------------------------------

    def after_tick(self) -> None:
        core = self._world.core
        assert core is not None
        errors, self._errors = core.loop.pulse.errors_total - self._errors, core.loop.pulse.errors_total
        if errors and not self.errors_excused:
            raise Violation("no-error", core.loop.pulse.last_error or "a recovery ran into an error")
        self.errors_excused = False
        snapshot = core.loop.pulse.snapshot
        read_at = (snapshot.slurm.read_at if snapshot is not None else None) or -math.inf
        if read_at > -math.inf:
            self._slurm_read_at = self._world.now - (self._world.clock.now() - read_at)
            self._last_read_at = self._slurm_read_at
        self._drained_unseen = {node: at for node, at in self._drained_unseen.items() if at >= read_at}
        if core.loop.pulse.slurm.error or self._world.now < self._world.line.refuses_until:
            self._fine_since = math.inf
        else:
            self._fine_since = min(self._fine_since, self._world.now)
        records = core.stores.fleet.nodes()
        if core.stores.kept_nodes.records() != records:
            raise Violation("records-are-those-of-the-table", "the loop would see other records of nodes")
        if snapshot is not None and (left_out := found_in_plain_nodes(snapshot, core.current.config)):
            raise Violation("plain-nodes-are-plain", f"{left_out[0]}")
        if snapshot is not None and (other_views := otherwise_viewed(snapshot)):
            raise Violation("kept-views-are-those-of-a-new-look", f"{other_views}")
        if snapshot is not None and (other := otherwise_found_in_steps(snapshot, core.current.config)):
            raise Violation("kept-verdicts-are-those-of-a-new-look", f"{other[0].rule}: {other[0].summary}")
        if core.loop.pulse.clock_jumps_total != self._clock_jumps:
            self._read_history(core)
        self._history.refresh(0.0)
        before, self._known = self._known, self._history.running()
        self._drained_unread &= _draining(self._known)
        running = {recovery.id for recovery in self._known}
        self._gangs_work([one for old in before if old.id not in running and (one := self._history.find(old.id))])
        self._jobs_that_ended()
        self._budgets(records)
        self._sends_people(records)
        self.ledger.after_tick()
        self._one_recovery_a_node(records)
        self._pause()
        self._job_pauses()
        self._restores()
        self._steps_end()
        self._saves(core)
        self._out_since = {name: self._out_since.get(name, self._world.now) for name in self._out(records)}
        self._owners(records)
        self._rests_are_listed(core, records)

    def _saves(self, core: Core) -> None:
        """All ranks of a gang save before the same step, and no order to do so stays proposed."""
        for job_id, well in self._world.cluster.restarted_well:
            if well > LATE_SECONDS:
                words = f"the launcher of job {job_id} was to restart it, and it was at work for {well:.0f} s"
                raise Violation("only-a-gang-that-hangs-is-restarted", words)
        self._world.cluster.restarted_well.clear()
        for split in self._world.cluster.splits:
            words = (
                f"of job {split.job_id}, attempt {split.attempt}, ranks {split.saved} saved before step {split.step}"
            )
            raise Violation("all-ranks-save-together", f"{words}, and ranks {split.not_saved} did not")
        now, proposed, mute = self._world.now, {}, self._jobs_with_a_dead_rank()
        for job_id, gang in core.telemetry.saves.gangs().items():
            if gang.order is not None and is_proposed(gang):
                key = (job_id, gang.attempt, gang.order.number)
                proposed[key] = now if job_id in mute else self._proposed_since.get(key, now)
                if now - proposed[key] > ORDER_SECONDS_MAX:
                    words = f"order {gang.order.number} to job {job_id} is neither agreed nor withdrawn"
                    raise Violation("an-order-to-save-ends", f"{words} for {now - proposed[key]:.0f} s")
        self._proposed_since = proposed

    def _jobs_with_a_dead_rank(self) -> set[int]:
        """Jobs with a dead rank. It is not known if one knows more of an order to save than the others: it stays until
        they move.
        """
        machines, gangs = self._world.cluster.machines, self._world.cluster.gangs
        return {gang.job_id for gang in gangs if not all(machines[name].alive for name in gang.seats)}

    def _jobs_that_ended(self) -> None:
        """A job whose program failed may have done so because of a fault."""
        jobs = self._world.jobs()
        for gang in self._world.cluster.gangs:
            job = jobs.get(gang.job_id)
            if gang.over in ("cancelled", "completed") and job is not None and job.state in ("PENDING", "RUNNING"):
                words = f"job {gang.job_id} was {gang.over} and is {job.state} again"
                raise Violation("an-ended-job-never-runs-again", words)

    def _gangs_work(self, ended: list[Recovery]) -> None:
        """A gang of which some ranks belong to another launch finishes no step: its recovery has not succeeded. Of jobs
        whose ranks never connected, as those of guests, only Slurm is known.
        """
        cluster = self._world.cluster
        at_work = {gang.job_id for gang in cluster.gangs if not gang.over} & cluster.connected
        for recovery in ended:
            swap = recovery.swap
            if swap is None or recovery.status is not RecoveryStatus.SUCCEEDED or swap.job.job_id not in at_work:
                continue
            if recovery.step(StepName.AWAIT_FIRST_STEP) is None:
                continue  # it has only kept a launcher off a spare, and ended no attempt
            before = Attempt(swap.restart_count, swap.launch if isinstance(swap, AllocationSwapPlan) else MANY_LAUNCHES)
            if not any(attempt > before for attempt in cluster.worked.get(swap.job.job_id, ())):
                words = f"recovery {recovery.id} has succeeded, and no attempt of job {swap.job.job_id} after {before}"
                raise Violation("a-gang-is-one-launch", f"{words} has finished a step")

    def _budgets(self, records: dict[str, NodeRecord]) -> None:
        """Counted when a node is newly out of service; not those that operators asked for, or that Slurm drained."""
        self._back_from_outage |= {
            name for name, record in records.items() if record.validation_origin is ValidationOrigin.OUTAGE
        }
        self._back_from_outage &= {name for name, record in records.items() if record.at_fault}
        not_counted = self._asked.keys() | self.excused
        at_fault = self.ledger.taken - not_counted
        waiting = sum(self._waits(records[name]) for name in at_fault)
        limit = self._budget() + min(waiting, self._waiting_budget())
        if at_fault - self._at_fault and self.count_failures(at_fault) > limit:
            raise Violation("never-over-a-budget", f"{', '.join(sorted(at_fault))} are out of service, {limit} may be")
        self._at_fault = at_fault

    def count_failures(self, nodes: set[str]) -> int:
        return len(nodes) - sum(max(0, len(nodes & switch) - 1) for switch in self._failed_switches)

    @property
    def touched(self) -> set[str]:
        """Nodes of which a person has asked something, here or in Slurm."""
        return self._asked.keys() | self.drained_by_person | self._vouched_at.keys()

    @property
    def excused(self) -> set[str]:
        """Nodes that Slurm had taken out of service before the control plane did."""
        return self._drained_for_prolog | self._back_from_outage

    def _budget(self) -> int:
        guards, nodes = self._world.config.guards, self._world.scenario.nodes
        limit = max(guards.quarantined_nodes_min, int(guards.quarantined_share * nodes))
        return limit if guards.quarantined_nodes_max is None else min(limit, guards.quarantined_nodes_max)

    def _waiting_budget(self) -> int:
        guards = self._world.config.guards
        return max(guards.waiting_nodes_min, int(guards.waiting_share * self._world.scenario.nodes))

    def _waits(self, record: NodeRecord) -> bool:
        """True if it waits for a person, or for the jobs on it."""
        left = record.drained_at is not None and self._world.clock.now() - record.since > LEFT_SECONDS
        runs = record.state is NodeState.QUARANTINED and bool(_jobs_on(self._world, record.name))
        alone = record.state is NodeState.QUARANTINED and not self._world.scenario.settings.repairs
        return record.state is NodeState.MANUAL_REPAIR or (left and (runs or alone))

    def _sends_people(self, records: dict[str, NodeRecord]) -> None:
        """No person is sent to a node that is well and that Slurm reaches, because only the control plane does not."""
        before = self._left_to_people
        self._left_to_people = {name for name, one in records.items() if one.state is NodeState.MANUAL_REPAIR}
        for name in sorted(self._left_to_people - before - self.touched):
            machine = self._world.cluster.machines[name]
            inferred = machine.alive and machine.accused_at == machine.inferred_at
            if inferred and self._world.now < machine.unreachable_until:
                words = f"a person is to repair {name}, to which only the control plane has no route"
                raise Violation("no-decision-without-evidence", words)

    def _one_recovery_a_node(self, records: dict[str, NodeRecord]) -> None:
        """One that ends early undoes what it has begun, and wants no more of its nodes, nor does one with steps about
        the job alone, or the weight, or a move of a node that has returned to service. An operator's hold drains the
        node, which the move of a gang off it has to do as well.
        """
        claimed: dict[str, int] = {}
        for recovery in (one for one in self._known if one.ends_as is None):
            for name in _works_on(recovery):
                record = records.get(name) if isinstance(recovery.plan, SwapPlan) else None
                if record is not None and record.state not in OUT_OF_SERVICE:
                    continue
                if name in claimed:
                    words = f"recoveries {claimed[name]} and {recovery.id} both work on {name}"
                    raise Violation("one-recovery-a-node", words)
                claimed[name] = recovery.id

    def _pause(self) -> None:
        """What people want is done in a pause as well, and what the site reports is passed on."""
        if self._newest_before_pause is None:
            return
        for recovery in self._known:
            wanted = self._is_wanted_by_person(recovery) or _passes_signal_on(recovery)
            if recovery.id > self._newest_before_pause and not wanted:
                kind = recovery.plan.kind.value
                raise Violation("a-pause-begins-nothing", f"recovery {recovery.id} ({kind}) began in a pause")

    def _is_wanted_by_person(self, recovery: Recovery) -> bool:
        """Asked for by an operator, or an administrator has taken in Slurm the node that is let go."""
        plan = recovery.plan
        taken = self.drained_by_person | self._vouched_at.keys() if isinstance(plan, LetGoPlan) else self._asked.keys()
        return plan.requested and (self._is_moved_by_person(recovery) or not taken.isdisjoint(plan.nodes))

    def _job_pauses(self) -> None:
        now, newest_of_all = self._world.clock.now(), max((one.id for one in self._known), default=0)
        for job_id, (_, ends_at) in list(self._paused_jobs.items()):
            if now >= ends_at:
                self._paused_jobs[job_id] = (newest_of_all, ends_at)
        for recovery in self._known:
            job = job_of(recovery.plan)
            newest, until = self._paused_jobs.get(job.job_id if job is not None else 0, (math.inf, 0.0))
            if recovery.id > newest and not self._is_moved_by_person(recovery) and now < until:
                raise Violation("a-paused-job-is-left-alone", f"recovery {recovery.id} began for job {job}")

    def _is_moved_by_person(self, recovery: Recovery) -> bool:
        job = job_of(recovery.plan)
        return recovery.plan.requested and job is not None and job.job_id in self.moved_jobs

    def _is_paused(self, job: JobKey | None) -> bool:
        return self._is_paused_number(job.job_id if job is not None else 0)

    def _restores(self) -> None:
        cluster = self._world.cluster
        for one in cluster.restores[self._restores_seen :]:
            same = {(other.step, other.path) for other in cluster.restores if _same_attempt(other, one)}
            if len(same) > 1:
                raise Violation("one-restore-point-an-attempt", f"attempt {one.attempt} was sent to {sorted(same)}")
            if one.path and len(cluster.written.get((one.gang.job_id, one.path), ())) < one.gang.seats_wanted:
                raise Violation("restored-only-from-good", f"{one.path} is not complete")
            if one.gone:
                raise Violation("restored-only-from-good", f"{one.path} was deleted before")
            if one.suspect:
                raise Violation("restored-only-from-good", f"the loss was NaN before {one.path}")
        self._restores_seen = len(cluster.restores)

    def _steps_end(self) -> None:
        now = self._world.now
        moved: dict[tuple[int, int, StepStatus], float] = {}
        for recovery in self._known:
            for step in recovery.steps:
                key = (recovery.id, step.position, step.status)
                waits = self._halted or self._only_observes or self._is_paused(job_of(recovery.plan))
                moved[key] = now if waits else self._moved_at.get(key, now)
            last = max(moved[recovery.id, step.position, step.status] for step in recovery.steps)
            if now - max(last, self._fine_since) > STEP_SECONDS_MAX:
                words = f"recovery {recovery.id} ({recovery.plan.kind.value}) has not moved for {now - last:.0f} s"
                raise Violation("every-recovery-ends", words)
        self._moved_at = moved

    def _owners(self, records: dict[str, NodeRecord]) -> None:
        """Seats, holds and drains of the control plane have a recovery or a state of their node that explains them."""
        wrong = self._ownerless(records)
        now = self._world.now
        stays = (
            self._only_observes or self._newest_before_pause is not None or self._holds_all_back()
        )  # as it is until that ends
        self._wrong_since = {words: now if stays else self._wrong_since.get(words, now) for words in wrong}
        for words, since in self._wrong_since.items():
            if now - max(since, self._fine_since) > GRACE_SECONDS and not self._world.scenario.settings.observes:
                raise Violation("everything-has-an-owner", f"{words} for {now - since:.0f} s")

    def _rests_are_listed(self, core: Core, records: dict[str, NodeRecord]) -> None:
        """What nothing of the control plane is at work on is in the list of what waits for a person, with the time from
        which a person sees it there.
        """
        now, seen = self._world.now, core.loop.pulse.needs
        everything = not FOR_ALL.isdisjoint(one.kind for one in seen)
        named = {one.subject for one in seen}
        resting = {} if everything or self._newest_before_pause is not None else self._resting(records)
        unlisted = {name: words for name, words in resting.items() if named.isdisjoint((name, *words.nodes))}
        self._unlisted_since = {name: self._unlisted_since.get(name, now) for name in unlisted}
        for name, since in self._unlisted_since.items():
            if now - max(since, self._fine_since) > unlisted[name].seconds:
                words = f"{name} {unlisted[name].words} for {now - since:.0f} s, and no need names it"
                raise Violation("what-rests-is-listed", words)

    def _resting(self, records: dict[str, NodeRecord]) -> dict[str, Rest]:
        """Nodes and gangs in the virtual world that no recovery is at work on."""
        world = self._world
        at_work = {name for recovery in self._known for name in recovery.plan.nodes}
        found = {
            name: Rest(f"is {record.state.value}", GRACE_SECONDS)
            for name, record in records.items()
            if record.state in (NodeState.QUARANTINED, NodeState.MANUAL_REPAIR) and name not in at_work
        }
        if all(world.now < one.silent_until for one in world.cluster.machines.values()):
            found["agents"] = Rest("are silent, all of them", SILENT_SECONDS_MAX)
        for gang, job in self._gangs_at_rest():
            waits_as_any_job = job.pending and not self._lost_seats(gang, job)
            if not gang.computes and gang.reported and not waits_as_any_job:
                found[f"job {gang.job_id}"] = Rest(
                    f"is {job.state}, does not work", STEP_SECONDS_MAX, job.nodes if job.requeue else ()
                )
        pool = {name for one in world.slurm.reservations() if one.name == POOL for name in one.nodes}
        held = sum(records[name].state not in OUT_OF_SERVICE for name in pool)
        if held < world.scenario.settings.spares and not world.scenario.settings.observes:
            found["spares"] = Rest(f"are {held} of {world.scenario.settings.spares}", GRACE_SECONDS)
        return found

    def _gangs_at_rest(self) -> Iterator[tuple[Gang, SlurmJob]]:
        """Gangs that no recovery is at work on, and that no person has taken over."""
        jobs = self._world.jobs()
        moving = {key.job_id for recovery in self._known if (key := job_of(recovery.plan)) is not None}
        for gang in self._world.cluster.gangs:
            job = jobs.get(gang.job_id)
            left = gang.job_id in self.left_to_person or self._is_paused_number(gang.job_id)
            left |= self._was_unreachable(gang) or gang.job_id in moving
            if job is not None and not (job.ended or job.held or gang.over or gang.suspended or left):
                yield gang, job

    def _lost_seats(self, gang: Gang, job: SlurmJob) -> set[str]:
        """Its last nodes that went out before Slurm could start it again. One that failed later has not stopped it."""
        by = self._world.now - self._world.slurm.now + (job.eligible_at or job.submit_at) + SCHEDULED_SECONDS
        return {name for name in self._own_nodes(gang, job) if self._out_since.get(name, math.inf) <= by}

    def _own_nodes(self, gang: Gang, job: SlurmJob) -> set[str]:
        """Those of its last attempt. What a user's requeue has given to another job is not the gang's any more."""
        given = {
            name
            for one in self._world.jobs().values()
            if one.job_id != job.job_id and (one.start_at or 0) >= job.submit_at
            for name in one.nodes
        }
        return set(gang.allocation) - given

    def _could_start(self, gang: Gang, job: SlurmJob) -> bool:
        """True if nodes that the control plane may give it could start it: its own, those of the pool, and idle ones
        where it takes these. For others it waits until Slurm starts it, which it does two minutes after a requeue
        (job_mgr.c, batch_requeue_fini).
        """
        slurm, machines = self._world.slurm, self._world.cluster.machines
        reserved = {name for one in slurm.reservations() if one.name != POOL for name in one.nodes}
        pool = {name for one in slurm.reservations() if one.name == POOL for name in one.nodes}
        given = {*gang.allocation, *pool}
        free = [
            one.name
            for one in slurm.nodes()
            if one.service is Service.USABLE
            and one.base_state == "IDLE"
            and one.name not in reserved.union(job.excluded_nodes)
            and (one.name in given or self._world.scenario.settings.no_spare.takes_idle)
            and one.memory_mb >= job.memory_mb
            and not machines[one.name].broken
            and not machines[one.name].is_cut_off(self._world.now)
        ]
        return len(slurm.in_few_blocks(free, job.node_count)) >= job.node_count

    def _was_unreachable(self, gang: Gang) -> bool:
        """What no one saw looks like a pause of its own, and it may pause for as long again."""
        return any(self._world.cluster.machines[name].unreachable_until for name in gang.seats)

    def _is_paused_number(self, job_id: int) -> bool:
        _, until = self._paused_jobs.get(job_id, (0, 0.0))
        return self._world.clock.now() < until

    def _holds_all_back(self) -> bool:
        """Because many nodes or gangs are silent at once, whose cause is elsewhere."""
        now, cluster = self._world.now, self._world.cluster
        there = [
            cluster.machines[one.name] for one in self._world.line.nodes_now() if not one.draining and not one.down
        ]
        silent = sum(now < one.silent_until or not one.answers(now) for one in there)
        return silent >= max(TOGETHER_MIN, MANY_SHARE * len(there)) or self._many_gangs_stand()

    def _many_gangs_stand(self) -> bool:
        jobs = self._world.jobs()
        running = [
            one for one in self._world.cluster.gangs if one.job_id in jobs and jobs[one.job_id].state == "RUNNING"
        ]
        return sum(not one.computes for one in running) >= TOGETHER_MIN

    def _ownerless(self, records: dict[str, NodeRecord]) -> list[str]:
        world = self._world
        jobs = {recovery.plan.job.job_id for recovery in self._known if isinstance(recovery.plan, SwapPlan)}
        nodes = {name for recovery in self._known for name in recovery.plan.nodes}
        wrong = [
            f"the pool has nodes for job {job.job_id}"
            for gang, job in self._gangs_at_rest()
            if job.pending and self._waits_for_nodes(records, gang, job) and self._could_start(gang, job)
        ]
        for reservation in world.slurm.reservations():
            if reservation.name.startswith(SEATS_PREFIX):
                if int(reservation.name.removeprefix(SEATS_PREFIX)) not in jobs:
                    wrong.append(f"{reservation.name} is left over")
            elif reservation.name.startswith(NODE_HOLD_PREFIX):
                name = reservation.name.removeprefix(NODE_HOLD_PREFIX)
                if name not in nodes and records[name].state not in (NodeState.REPAIRING, NodeState.VALIDATING):
                    wrong.append(f"{reservation.name} is left over")
        for node in world.line.nodes_now():
            state = records[node.name].state
            known = node.name in nodes or node.name in self.notified_of
            if node.service is Service.USABLE and not known and state in OUT_OF_SERVICE - IN_REPAIR:
                wrong.append(f"{node.name} is {state.value}, and Slurm offers it to jobs")
            drained = node.draining and node.reason.startswith("understudy:") and node.name not in nodes
            if drained and state not in OUT_OF_SERVICE:
                wrong.append(f"{node.name} is drained ({node.reason}), and {state.value}")
        return wrong

    def _waits_for_nodes(self, records: dict[str, NodeRecord], gang: Gang, job: SlurmJob) -> bool:
        """It does not if a person knows that a guard, such as the job's own budget, holds its move back."""
        core, lost = self._world.core, self._lost_seats(gang, job)
        assert core is not None
        knows = self.notified_of.intersection((f"job {job.job_id}", *lost))
        held_back = knows.intersection(one.subject for one in core.loop.pulse.needs)
        return not held_back and any(self._waits_for(records, name) for name in lost)

    def _waits_for(self, records: dict[str, NodeRecord], name: str) -> bool:
        """A gang waits for the node. Where a guard keeps a node at fault in service, and a person was notified, the
        gang waits as any job that its user requeues.
        """
        return records[name].state in OUT_OF_SERVICE or not self._is_left_at_fault(name)

    # -- at the end ------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """Faults stopped minutes ago: everything is at rest."""
        world = self._world
        core = world.core
        if core is None:
            raise Violation("everything-comes-to-rest", "the control plane is not running")
        asked = in_force(core.stores.requests.stored(), world.clock.now())
        if world.scenario.settings.observes or asked.breaker.reason or asked.pause.reason or asked.job_pauses:
            return
        for recovery in core.stores.recoveries.running():
            if isinstance(recovery.plan, PoolSwapPlan) and self._await_timeout(recovery.plan.dead_nodes):
                continue
            answers = all(world.cluster.machines[name].alive for name in recovery.plan.nodes)
            limit = NEXT_RUNG_SECONDS if answers else DEAD_NODE_SECONDS
            begun_lately = world.clock.now() - recovery.decided_at < limit
            if isinstance(recovery.plan, RepairPlan | ValidationPlan) and begun_lately:
                continue
            steps = [f"{step.name.value} {step.status.value}" for step in recovery.steps]
            words = f"recovery {recovery.id} ({recovery.plan.kind.value}) is still open: {', '.join(steps)}"
            raise Violation("everything-comes-to-rest", words)
        self._broken_nodes_rest(core)
        self._gangs_rest(core)
        self._gangs_save(core)
        self._pool_rests(core)

    def _gangs_save(self, core: Core) -> None:
        """Gangs that work were asked what people wanted them to be asked, and their ranks save by one schedule."""
        asked = in_force(core.stores.requests.stored(), 0.0).saves
        for gang in self._world.cluster.gangs:
            if gang.asking is None or not gang.computes:
                continue
            if gang.job_id in asked:
                raise Violation("an-order-to-save-ends", f"the request that job {gang.job_id} saves has no answer")
            if not gang.asking.is_one_schedule:
                raise Violation("all-ranks-save-together", f"ranks of job {gang.job_id} save by different schedules")

    def _broken_nodes_rest(self, core: Core) -> None:
        """No broken node is in service for which no person answers, unless a budget holds the control plane back."""
        records = core.stores.fleet.nodes()
        budget = self._budget()
        if len(self.ledger.taken) >= budget:
            return
        usable = {node.name for node in self._world.slurm.nodes() if node.service is Service.USABLE}
        for name in sorted(usable):
            machine = self._world.cluster.machines[name]
            if not machine.broken or records[name].state is not NodeState.IN_SERVICE or self._is_vouched_for(machine):
                continue
            for_others = self._is_held_back_for_others(name)
            if for_others or not self._is_notified_of(name):
                words = f"{name} is broken, and in service{f', because {for_others}' if for_others else ''}"
                raise Violation("everything-comes-to-rest", words)

    def _is_held_back_for_others(self, name: str) -> str:
        """Because many others stand still or are silent, though its own GPU has proven that it is broken. That a person
        was notified excuses nothing.
        """
        because = self._newest_because(name)
        return because if because in (Because.MASS_HANG, Because.MASS_SILENCE) else ""

    def _is_notified_of(self, name: str) -> bool:
        """One page is for all nodes that a rule over its budget holds back. Who rejects a drain knows of its node."""
        by_rule = any(one.startswith("rule ") for one in self.notified_of)
        held_back = {Because.RULE_BUDGET: by_rule, Because.CANCELLED: name in self._vouched_at}
        return name in self.notified_of or any(held_back[one] for one in held_back if one == self._newest_because(name))

    def _newest_because(self, name: str) -> str:
        """Because of what its newest decision is as it is, but for what is only recorded: that ends no objection."""
        found = Queries(self._world.engine).decisions(DECISIONS_READ, only=DecisionFilter(subject=name))
        own = (one["because"] for one in found if one["action"] != Action.NOTHING or one["because"] != Because.RULE)
        return next(own, "")

    def _pool_rests(self, core: Core) -> None:
        """Spares are held where healthy nodes are idle, and nodes in service have the weight that they had."""
        world = self._world
        if self._many_gangs_stand():
            return  # it holds all back until a person has looked
        records, nodes = core.stores.fleet.nodes(), world.slurm.nodes()
        reservations = {one.name: one.nodes for one in world.slurm.reservations()}
        reserved = {name for names in reservations.values() for name in names}
        machines, now = world.cluster.machines, world.clock.now()
        round_ago = now - world.scenario.quiet_seconds  # before the last round: what followed from it is done
        settled = {
            name for name, one in records.items() if one.state is NodeState.IN_SERVICE and one.since <= round_ago
        }
        in_service = [node for node in nodes if node.service is Service.USABLE and node.name in settled]
        broken = {name for name, one in machines.items() if one.broken or one.port_is_down(now)}
        idle = [node.name for node in in_service if node.base_state == "IDLE" and node.name not in reserved | broken]
        # Nodes that an operator keeps out of the pool stay out.
        chosen = in_force(core.stores.requests.stored(), now).spare_choices
        kept = {*_reported(core), *self._awaited(), *(name for name, one in machines.items() if one.on_trial)}
        idle = [name for name in idle if name not in kept and chosen.get(name) is not False]
        pool = reservations.get(POOL, ())
        spares = [node for node in nodes if node.name in pool and records[node.name].state not in OUT_OF_SERVICE]
        held, size = sum(not node.down and not node.draining for node in spares), world.scenario.settings.spares
        if held < size and idle:
            words = f"{', '.join(idle)} are idle, and the pool holds {held} spares"
            raise Violation("everything-comes-to-rest", words)
        if held > size > 0:
            raise Violation("everything-comes-to-rest", f"the pool holds {held} spares, and is to hold {size}")
        for node in in_service:
            if node.weight != 1:
                raise Violation("everything-comes-to-rest", f"{node.name} is in service with a weight of {node.weight}")

    def _awaited(self) -> set[str]:
        """Last nodes of gangs that wait in the queue because others of these are lost: no spares are made of them."""
        world, jobs = self._world, self._world.jobs()
        usable = {node.name for node in world.slurm.nodes() if node.service is Service.USABLE}
        last = {
            gang.job_id: gang.allocation
            for gang in world.cluster.gangs
            if gang.job_id in jobs and jobs[gang.job_id].pending
        }
        return {name for names in last.values() for name in names if not usable.issuperset(names)}

    def _is_vouched_for(self, machine: Machine) -> bool:
        """A person has returned it to service, broken as it is."""
        return machine.broken and machine.broken_at < self._vouched_at.get(machine.name, -math.inf)

    def _await_timeout(self, nodes: Iterable[str], *, completing: bool = False) -> bool:
        """A dead node that an administrator has drained, or on which a job is `completing`, is left to Slurm's own
        timeout: an hour where its clock was set back by that.
        """
        machines, behind = self._world.cluster.machines, self._world.clock.by_slurm(0.0) < 0
        left = [name for name in nodes if completing or name in self.drained_by_person]
        return behind and any(not machines[name].alive for name in left)

    def _is_left_at_fault(self, name: str) -> bool:
        """A budget has kept it in service, its gang has left it, and a person was notified."""
        return self._world.cluster.machines[name].broken and self._is_notified_of(name)

    def _stays(self, core: Core) -> set[int]:
        """Jobs on nodes at fault, for which there is no other node: neither a spare nor an idle one."""
        at_fault = self._out(core.stores.fleet.nodes())
        pool = {name for one in self._world.slurm.reservations() if one.name == POOL for name in one.nodes}
        takes_idle = self._world.scenario.settings.no_spare.takes_idle
        free = any(
            node.service is Service.USABLE and node.base_state == "IDLE" and (takes_idle or node.name in pool)
            for node in self._world.slurm.nodes()
        )
        return set() if free else {job for name in at_fault for job in _jobs_on(self._world, name)}

    def _out(self, records: dict[str, NodeRecord]) -> set[str]:
        """Nodes out of service, or at fault in the virtual world."""
        machines = self._world.cluster.machines
        return {name for name, one in machines.items() if one.broken or not one.alive} | {
            name for name, record in records.items() if record.state in OUT_OF_SERVICE
        }

    def _gangs_rest(self, core: Core) -> None:
        world = self._world
        jobs = world.jobs()
        reserved = {name for one in world.slurm.reservations() for name in one.nodes}
        free = {
            node.name for node in world.slurm.nodes() if node.service is Service.USABLE and node.base_state == "IDLE"
        } - reserved
        maintained = {name for one in world.slurm.reservations() if one.is_maintenance for name in one.nodes}
        named = {one.subject for one in core.loop.pulse.needs}
        for gang in world.cluster.gangs:
            job = jobs.get(gang.job_id)
            own = {f"job {gang.job_id}", *(job.nodes if job is not None else ())}
            notified = self.notified_of & own and named & own  # and it is still in the list
            if gang.over or job is None or job.ended or notified or gang.job_id in self.left_to_person:
                continue
            if gang.hung_on == LICENCE or self._was_unreachable(gang):
                continue
            if job.held and not job.held_after_failed_launch:
                continue  # by its user, who releases it
            if any(self._is_vouched_for(world.cluster.machines[name]) for name in job.nodes):
                continue  # its processes cannot work there, and a person answers for that
            if self._await_timeout(job.nodes, completing=job.completing):
                continue
            if job.state == "RUNNING" and not gang.reported:
                continue  # its first start hangs: whether its program has the hook is not known
            by_slurms_clock = job.pending and (job.start_at or 0) > world.slurm.now + REQUEUE_DELAY_SECONDS
            if by_slurms_clock:
                continue  # it was set back after the requeue
            if gang.hangs_at is not None:
                continue  # its program hangs, wherever it runs
            cannot_move = not job.requeue or bool(maintained.intersection(job.nodes))
            if cannot_move and f"job {gang.job_id}" in named:
                continue
            moved = gang.job_id in self.moved_jobs  # it is kept off the nodes that it was to leave
            left = {name for name in job.excluded_nodes if moved or self._is_left_at_fault(name)}
            startable = self._has_nodes(job, free - left) or self._could_get_nodes(gang, job, free - left)
            if gang.computes or (job.pending and not startable) or gang.job_id in self._stays(core):
                continue
            words = f"gang {gang.number} (job {gang.job_id}) is {job.state} on {', '.join(job.nodes)} and does not work"
            raise Violation("everything-comes-to-rest", words)

    def _has_nodes(self, job: SlurmJob, names: Collection[str]) -> bool:
        """Slurm could start the job on these."""
        small = {node.name for node in self._world.line.nodes_now() if node.memory_mb < job.memory_mb}
        fitting = sorted(set(names) - small)
        return len(self._world.slurm.in_few_blocks(fitting, job.node_count)) >= job.node_count

    def _could_get_nodes(self, gang: Gang, job: SlurmJob, free: set[str]) -> bool:
        """It waits for lost nodes, or was ended for a move, and there are spares that are well."""
        world, own = self._world, self._own_nodes(gang, job)
        nodes = {node.name: node for node in world.slurm.nodes()}
        pool = {name for one in world.slurm.reservations() if one.name == POOL for name in one.nodes}
        spares = {name for name in pool if nodes[name].service is Service.USABLE}
        others = free if world.scenario.settings.no_spare.takes_idle else free & own
        well = {name for name in spares | others if not world.cluster.machines[name].broken}
        if not own.isdisjoint(self.notified_of):
            return False  # a guard has held its node's finding back
        lost = any(nodes[name].service is not Service.USABLE for name in own)
        moved = self.ledger.own_ends.get(job.job_id) == job.restart_count - 1
        return (lost or moved) and self._has_nodes(job, well - {*job.excluded_nodes})


def found_in_plain_nodes(snapshot: Snapshot, config: Config) -> list[object]:
    """What rules and decisions that look at nodes which are notable, set apart, or unusual, would find in the others;
    empty, if it is right to leave these out.
    """
    whole = replace(snapshot, nodes=dict(snapshot.nodes))
    decided = [decide(one, detect(one, config), config) for one in (snapshot, whole)]
    other = [one for one in decided[1] if one not in decided[0]] + [one for one in decided[0] if one not in decided[1]]
    apart = replace(whole)
    apart.__dict__["set_apart"] = apart.__dict__["unusual"] = tuple(whole.nodes.values())  # kept there once computed
    tried = attempts_by_node(whole)
    return [
        *other,
        *(
            one
            for look in DETECTORS.values()
            if (known := [*look(snapshot, config)]) is not None
            for one in look(apart, config)
            if one not in known
        ),
    ] + [
        one
        for name in whole.nodes.keys() - {node.name for node in concerned(snapshot)}
        for one in due(whole, whole.nodes[name], tried.get(name, ()), config)
    ]


def otherwise_viewed(snapshot: Snapshot) -> list[str]:
    """Nodes whose view would be another one if none were kept."""
    views = snapshot.nodes
    assert isinstance(views, NodeViews)
    return [name for name, view in views.made_again().items() if view != views[name]]


def otherwise_found_in_steps(snapshot: Snapshot, config: Config) -> list[Finding]:
    """What would be found of slow ranks, or not, if no verdict were kept."""
    tables = {key: replace(table, kept={}) for key, table in snapshot.progress.tables.items()}
    fresh = replace(snapshot, progress=replace(snapshot.progress, tables=tables))
    kept, found = ([*DETECTORS["straggler"](one, config)] for one in (snapshot, fresh))
    return [one for one in (*kept, *found) if one not in kept or one not in found]


def is_proposed(gang: SavingGang) -> bool:
    return gang.order is not None and gang.order.state is OrderState.PROPOSED


def _reported(core: Core) -> set[str]:
    """Nodes of which an operator has reported a fault, while a budget holds that back: they are no spares."""
    requests = core.loop.pulse.snapshot.operator.requests if core.loop.pulse.snapshot else {}
    return {name for name, request in requests.items() if request.verb is Verb.QUARANTINE}


def _works_on(recovery: Recovery) -> tuple[str, ...]:
    """Its nodes, and the job that it has to start again."""
    plan = recovery.plan
    if isinstance(plan, QuarantinePlan) and plan.requested:  # an operator's hold
        return ()
    waiting = {step.name for step in recovery.steps if step.status in {StepStatus.PLANNED, StepStatus.INTENDED}}
    nodes = () if waiting and waiting <= BESIDE_ANY_OTHER else tuple(dict.fromkeys(plan.nodes))
    return (*nodes, f"job {plan.job.job_id}") if StepName.START_JOB in waiting and isinstance(plan, SwapPlan) else nodes


def _passes_signal_on(recovery: Recovery) -> bool:
    plan = recovery.plan
    return isinstance(plan, PagePlan) and all(name.startswith(SIGNAL_PREFIX) for name in plan.about)


def _draining(recoveries: Iterable[Recovery]) -> set[str]:
    """Nodes whose drain was begun, and not read back yet."""
    drains = [(one.plan.nodes, one.step(StepName.DRAIN_NODES)) for one in recoveries]
    return {name for nodes, step in drains if step is not None and step.status is StepStatus.INTENDED for name in nodes}


def _jobs_on(world: World, node: str) -> list[int]:
    """Slurm shows the nodes of a job that has ended for minutes."""
    return [job.job_id for job in world.jobs().values() if node in job.nodes and not job.ended]


def _same_attempt(one: Any, other: Any) -> bool:
    return bool(one.gang is other.gang and one.attempt == other.attempt)
