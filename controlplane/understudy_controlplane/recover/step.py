"""What a step is, and what it may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from understudy_controlplane.config import Config
from understudy_controlplane.decide.peers import Turn
from understudy_controlplane.fleet.custody import custody_in
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import opted_in
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeRecord
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    SEATS_PREFIX,
    DrainPlan,
    FirstStepOfAll,
    ManualRepairPlan,
    PagePlan,
    Plan,
    PlanBase,
    PoolSwapPlan,
    ReleaseJobPlan,
    StepName,
    SwapPlan,
)
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmView
from understudy_controlplane.slurm.protocol import Slurm
from understudy_wire.launcher import LauncherOrders
from understudy_wire.stages import StageResult

PlanT = TypeVar("PlanT", bound=PlanBase)

SUSPENDED = "the job is suspended: it is requeued once it was resumed"

RESTART_FORGOTTEN = "the job runs as before its requeue: slurmctld crashed and has forgotten it"


SEATED_SECONDS = 5.0
"""After a node was condemned: two gangs that share it get their seats one after the other."""


@dataclass(frozen=True, slots=True)
class GangFacts:
    """What the ranks of the job's present attempt have reported."""

    hook_was_used: bool  # by any attempt of the job: if not, no rank will connect now either
    ranks_started: int = 0
    world_size: int = 0
    last_started_at: float | None = None
    first_step: FirstStepOfAll | None = None


class Tickets(Protocol):
    """What steps need beside Slurm: tickets for people, and the ends of the output of the control plane's jobs."""

    def is_there(self, label: str) -> bool: ...

    def open(self, plan: ManualRepairPlan | PagePlan) -> None: ...

    def read_end(self, path: str) -> str:
        """The last lines of a file; empty where it cannot be read here."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step may look at: Slurm as just read, and the reports of the gang."""

    plan: Plan
    slurm: SlurmView
    records: Mapping[str, NodeRecord]  # of the nodes that the plan takes out of service or declares down
    gang: Callable[[int], GangFacts]  # by restart count; asks the database
    silent: Callable[[Sequence[SlurmNode]], list[str]]  # those of them whose slurmd does not answer at its port now
    still_silent: Callable[[Sequence[SlurmNode]], list[str]]  # twice, with a pause: for effects, beside the loop
    config: Config
    now: float
    tickets: Tickets
    send_orders: Callable[[LauncherOrders], None]  # to the launcher of the plan's job
    worked_until: Callable[[], float]  # what the gang did after that was lost with the fault; asks the database
    launcher: Gang | None = None  # what that launcher last reported
    ended_well: Callable[[], bool] = lambda: False
    """Asks the database whether every rank of the job's last launch has ended well, as its launcher reported."""
    spares_wanted: Callable[[], int] = lambda: 0
    """How many spares the pool is to hold, as an operator has set or as configured; asks the database."""
    turn: Turn | None = None  # of a node whose network is tested with others that were burnt in beside it
    network_median: Callable[[], float | None] = lambda: None  # of the fleet, in GB/s; asks the database

    @property
    def slurm_now(self) -> float:
        """Time of slurmctld's clock, which dates all times of Slurm's."""
        return self.now + self.slurm.clock_ahead_seconds

    def plan_as(self, kind: type[PlanT]) -> PlanT:
        """The plan, for a step that only plans of this kind have."""
        if not isinstance(self.plan, kind):
            raise TypeError(f"a {self.plan.kind.value} plan has a step that needs a {kind.__name__}")
        return self.plan

    @property
    def job(self) -> SlurmJob | None:
        """The plan's job; None when Slurm has forgotten it or gave its id to another.

        A requeue raises the restart count and renews the submit time; another job of the same id starts at zero.
        """
        plan = self.plan
        if not isinstance(plan, SwapPlan | ReleaseJobPlan):
            return None
        job = self.slurm.jobs.get(plan.job.job_id)
        if job is None or (job.submit_at != plan.submit_at and job.restart_count <= plan.restart_count):
            return None
        return job

    @property
    def restart_is_forgotten(self) -> bool:
        """True if the gang runs as before the requeue although the plan is past it: slurmctld has crashed since."""
        return self.job is not None and self.job.state == "RUNNING" and not self.is_next_attempt

    @property
    def is_next_attempt(self) -> bool:
        """True if Slurm shows an attempt of the job that the plan has led to. The facts of others prove nothing."""
        if not isinstance(self.plan, PoolSwapPlan):
            return True
        return self.job is not None and self.job.restart_count > self.plan.restart_count

    def others_hold(self, node: SlurmNode) -> bool:
        """True if an administrator took the node out of service, or took over Understudy's drain."""
        return custody_in(node, self.records.get(node.name), self.plan_as(DrainPlan).drain_reason).by_others

    def is_in_service(self, name: str) -> bool:
        """Its fault was gone before its drain began, or a person has released it since, while other nodes of the plan
        are still at fault.
        """
        record = self.records.get(name)
        return record is not None and record.state not in OUT_OF_SERVICE

    def mute(self, names: Iterable[str]) -> list[str]:
        """Those of the nodes whose slurmd does not answer just now. Reason enough to wait."""
        return self.silent(self._up(names))

    def gone(self, names: Iterable[str]) -> list[str]:
        """Those of the nodes whose slurmd does not answer, asked again after a pause. Reason enough to act."""
        return self.still_silent(self._up(names))

    def unseated(self, names: Iterable[str]) -> list[int]:
        """Other managed jobs on these nodes that have no seats elsewhere yet, where these may come within seconds: down
        ends them as well.
        """
        plan, nodes = self.plan_as(SwapPlan), set(names)
        since = max((self.records[name].since for name in nodes if name in self.records), default=0.0)
        if not 0.0 <= self.now - since < SEATED_SECONDS:
            return []
        word = self.config.jobs.opt_in_word
        return [
            job.job_id
            for job in self.slurm.jobs.values()
            if job.holds_nodes and nodes & set(job.nodes) and job.job_id != plan.job.job_id
            if opted_in(job.comment, word) and job.reservation != f"{SEATS_PREFIX}{job.job_id}"
        ]

    def _up(self, names: Iterable[str]) -> list[SlurmNode]:
        return [node for name in names if (node := self.slurm.nodes.get(name)) is not None and not node.down]

    def shared(self, names: Iterable[str]) -> list[int]:
        """Jobs on these nodes that are not managed. Without nodes, Slurm is not asked for all its jobs."""
        nodes = set(names)
        if not nodes:
            return []
        word = self.config.jobs.opt_in_word
        return [
            job.job_id
            for job in self.slurm.jobs.values()
            if job.holds_nodes and nodes & set(job.nodes) and not opted_in(job.comment, word)
        ]

    @property
    def node_name(self) -> str:
        """The node that a plan about one node is about."""
        return self.plan.nodes[0]

    @property
    def hold_name(self) -> str:
        return f"{NODE_HOLD_PREFIX}{self.node_name}"

    @property
    def seats_name(self) -> str:
        return f"{SEATS_PREFIX}{self.plan_as(SwapPlan).job.job_id}"


@dataclass(frozen=True, slots=True)
class Done:
    detail: str = ""
    at: float | None = None  # when it came about, where that is known better than "now"
    communicator_at: float | None = None  # of AWAIT_FIRST_STEP, as in the journal
    results: tuple[StageResult, ...] = ()  # of the stages of a validation


@dataclass(frozen=True, slots=True)
class Todo:
    """The effect is missing and not on its way: act."""

    why: str
    once_after: float | None = None  # by the control plane's clock: where it was tried since, there is nothing to do


@dataclass(frozen=True, slots=True)
class Wait:
    """The effect is on its way, or another has to act."""

    why: str
    may_take_long: bool = False  # an administrator, a user or an epilog has to finish first


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect is no longer possible."""

    why: str
    never_began: bool = False  # the control plane's job on the node never started, or was cancelled
    results: tuple[StageResult, ...] = ()  # of the stages of a validation


Observation = Done | Todo | Wait | Failed


@dataclass(frozen=True, slots=True)
class Step:
    """`observe` changes nothing; `act` makes Slurm calls and may raise SlurmError or SlurmUnavailable."""

    name: StepName
    observe: Callable[[StepContext], Observation]
    act: Callable[[StepContext, Slurm], None]
    needs: tuple[StepName, ...] = ()
    """Earlier steps whose effect has to stand when this one acts. A slurmctld that crashed may have forgotten it, a
    person may have undone it: then that step is taken up again first.
    """


def nothing_to_do(context: StepContext, slurm: Slurm) -> None:
    """The act of a step that only waits. Never called: such a step never observes Todo."""
    raise AssertionError(f"nothing to do for {context.plan} on {slurm}")
