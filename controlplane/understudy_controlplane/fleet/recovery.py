"""Plans, their journalled steps, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

import msgspec

from understudy_controlplane.fleet.job import JobKey

SEATS_PREFIX = "understudy_seats_"
"""Names of the reservations that hold a gang's seats; its job id follows."""


NODE_HOLD_PREFIX = "understudy_node_"
"""Names of the reservations that keep a node for the control plane alone while it works on it; its name follows."""


class Rung(StrEnum):
    """The repair ladder, from below."""

    RESTART_APP = "restart_app"  # the gang was moved; the node itself needs nothing
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"  # by the provider of the node
    MANUAL_REPAIR = "manual_repair"  # by an administrator


class RecoveryKind(StrEnum):
    POOL_SWAP = "pool"  # the gang moves to a spare from the pool
    ALLOCATION_SWAP = "allocation"  # the gang's launcher moves it to a spare of its allocation
    LAUNCHER_RESTART = "launcher_restart"  # the gang's launcher has restarted it by itself: the time is credited
    QUARANTINE = "quarantine"  # nodes leave service; no managed gang is moved
    FILL_POOL = "fill_pool"  # nodes join the spare pool
    LEAVE_POOL = "leave_pool"  # nodes leave the spare pool
    RELEASE_JOB = "release_job"  # a job that Understudy's Prolog kept off a node starts elsewhere
    DELETE_SEATS = "delete_seats"  # a reservation that held a gang's seats is left over
    REPAIR = "repair"  # a rung of the repair ladder is tried on a node
    VALIDATE = "validate"  # a node is tested before it returns
    MANUAL_REPAIR = "manual_repair"  # an administrator is asked to repair a node
    RETURN = "return"  # a node that is well goes back to work
    TAKE_BACK = "take_back"  # a node under repair is drained, and its reservation deleted
    LET_GO = "let_go"  # an administrator took a node: what is still held of it is released
    PAGE = "page"  # a person is notified of what a guard holds back
    RESTORE_WEIGHT = "restore_weight"  # probation is over: the node's weight in Slurm is what it was before


class StepName(StrEnum):
    """Imperatives, in the order in which plans use them."""

    DRAIN_NODES = "drain_nodes"
    ORDER_RESTART = "order_restart"
    HOLD_SEATS = "hold_seats"
    TAKE_SPARES = "take_spares"
    BIND_JOB = "bind_job"
    DOWN_NODES = "down_nodes"
    REQUEUE_JOB = "requeue_job"
    EXCLUDE_NODES = "exclude_nodes"
    START_JOB = "start_job"
    RELEASE_SEATS = "release_seats"
    DELETE_SEATS = "delete_seats"
    AWAIT_PROCESSES = "await_processes"
    AWAIT_FIRST_STEP = "await_first_step"
    CREDIT_TIME = "credit_time"
    FILL_POOL = "fill_pool"
    RELEASE_JOB = "release_job"
    ALLOW_NODES = "allow_nodes"
    HOLD_NODE = "hold_node"
    RESUME_NODE = "resume_node"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    RUN_VALIDATION = "run_validation"
    TEST_NETWORK = "test_network"
    AWAIT_PEERS = "await_peers"
    OPEN_TICKET = "open_ticket"
    RAISE_WEIGHT = "raise_weight"
    RELEASE_NODE = "release_node"
    RESTORE_WEIGHT = "restore_weight"
    RETURN_SPARES = "return_spares"
    LIFT_DRAIN = "lift_drain"


JOBS_ON_A_NODE = frozenset({StepName.RESET_GPU, StepName.RUN_VALIDATION})
"""Steps that are a job of the control plane on the node. The steps before them only prepare it. `TEST_NETWORK`, which
comes after such a job, is not among them.
"""


UNDOES = (StepName.RETURN_SPARES, StepName.RELEASE_SEATS, StepName.LIFT_DRAIN)
"""Steps that undo what others did, in their order: of a recovery that failed, or that ends early, only these are still
carried out.
"""


class StepStatus(StrEnum):
    PLANNED = "planned"
    INTENDED = "intended"  # recorded before the effect: from here on the effect may have happened
    DONE = "done"  # the effect was read back
    FAILED = "failed"


class RecoveryStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # needs a person
    SUPERSEDED = "superseded"  # a newer plan for the same job goes on from here
    OVERTAKEN = "overtaken"  # what it was planned for is no longer so
    CANCELLED = "cancelled"  # by an operator
    AWAITS_APPROVAL = "awaits_approval"  # in mode approve: proposed, and nothing is done yet
    APPROVED = "approved"  # the next round plans it again, from the newest facts, and supersedes this
    EXPIRED = "expired"  # it was not approved in time


class PlanBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What every plan has: the steps that carry a decision out. Data only, written down before anything happens."""

    kind: ClassVar[RecoveryKind]
    steps: tuple[StepName, ...]
    nodes: tuple[str, ...] = msgspec.field(default=(), name="failed_nodes")  # that it drains, or works on
    supersedes: int | None = None  # id of an unfinished recovery, of the same job or node
    requested: bool = False  # by a person: also done during a pause

    @property
    def claimed(self) -> tuple[str, ...]:
        """Every node that the plan works on, or promises to a gang or to the pool."""
        return self.nodes


class HungNode(msgspec.Struct, frozen=True):
    """A node that a gang waited for when it hung."""

    node: str
    ranks: tuple[int, ...]  # on it, that held up the others
    user: str  # of the job
    gang_nodes: int


class DrainPlan(PlanBase, frozen=True, kw_only=True):
    """A plan with a step that drains its nodes."""

    drain_reason: str
    rules: tuple[str, ...] = ()  # that accuse its nodes, or its gang of a hang; empty: it is about no new fault


class SwapPlan(DrainPlan, frozen=True, kw_only=True):
    """A gang leaves the nodes of the plan, or is restarted where it hangs."""

    job: JobKey
    submit_at: int  # as Slurm showed it when this was decided: a requeue changes it
    restart_count: int  # of the attempt that is given up
    dead_nodes: tuple[str, ...] = ()  # nodes of the plan that no longer answer Slurm
    last_step: int | None = None  # the furthest step that this attempt was seen to finish
    count_from: int = 0  # what has to be taken off for the number that the program gave it
    reservation: str = ""  # in which the job ran before: it gets it back
    hang: str = ""  # why the gang is restarted though no rank of it has ended
    hung_on: tuple[HungNode, ...] = ()  # nodes that it waited for
    suspended_or_resumed_at: int | None = None  # of the job, as Slurm showed it when this was decided
    leaving: tuple[str, ...] = ()  # nodes that give their seat to a spare, and are not failed

    @property
    def stops_gang(self) -> bool:
        """True if the gang is moved or restarted by it."""
        return True


class PoolSwapPlan(SwapPlan, frozen=True, kw_only=True, tag=RecoveryKind.POOL_SWAP.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.POOL_SWAP
    user: str  # of the job
    account: str = ""  # of the job, in Slurm
    seats: tuple[str, ...]  # where the gang is to run: its healthy nodes and the spares
    spares: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()  # nodes in service that the job must not start on
    preempted: tuple[int, ...] = ()  # jobs on its spares that Slurm is to preempt for it, by job id
    from_pool: tuple[str, ...] = ()  # spares that the pool held

    @property
    def claimed(self) -> tuple[str, ...]:
        return (*self.seats, *self.spares, *self.nodes)


class AllocationSwapPlan(SwapPlan, frozen=True, kw_only=True, tag=RecoveryKind.ALLOCATION_SWAP.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.ALLOCATION_SWAP
    launch: int = -1  # of the gang within its allocation, that is given up; -1: none is
    fault_at: float = 0.0
    time_limit_minutes: int | None = None  # of the job when this was decided
    credit_minutes_max: int = 0  # the most by which the limit may be raised for this fault
    places: tuple[tuple[str, str], ...] = ()
    """Node that the gang leaves, and the spare of its allocation that costs it least there."""

    @property
    def stops_gang(self) -> bool:
        """Not by the order to a launcher to keep off a node that its gang does not use."""
        return self.launch >= 0


class LauncherRestartPlan(AllocationSwapPlan, frozen=True, kw_only=True, tag=RecoveryKind.LAUNCHER_RESTART.value):
    """Nothing is ordered: `launch` has ended, and its launcher has begun another."""

    kind: ClassVar[RecoveryKind] = RecoveryKind.LAUNCHER_RESTART

    @property
    def stops_gang(self) -> bool:
        """Its launcher has done that; time is credited."""
        return False


class QuarantinePlan(DrainPlan, frozen=True, kw_only=True, tag=RecoveryKind.QUARANTINE.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.QUARANTINE
    renamed_nodes: tuple[
        str, ...
    ] = ()  # drained by Slurm because of Understudy's Prolog: they get the control plane's reason


class FillPoolPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.FILL_POOL.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.FILL_POOL
    spares: tuple[str, ...]

    @property
    def claimed(self) -> tuple[str, ...]:
        return self.spares


class LeavePoolPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.LEAVE_POOL.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.LEAVE_POOL
    spares: tuple[str, ...]

    @property
    def claimed(self) -> tuple[str, ...]:
        return self.spares


class ReleaseJobPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.RELEASE_JOB.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.RELEASE_JOB
    job: JobKey
    submit_at: int  # as Slurm showed it when this was decided
    restart_count: int
    allowed: tuple[str, ...] = ()  # nodes that an earlier plan excluded, and that are back in service


class DeleteSeatsPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.DELETE_SEATS.value):
    """Deletes the seats of a job that no recovery moves any more; Slurm may have forgotten the job."""

    kind: ClassVar[RecoveryKind] = RecoveryKind.DELETE_SEATS
    reservation: str
    user: str  # for whom it was created


class RepairPlan(DrainPlan, frozen=True, kw_only=True, tag=RecoveryKind.REPAIR.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.REPAIR
    rung: Rung
    label: str  # names the control plane's job on the node: never used again
    gpus: tuple[str, ...] = ()  # that are to be reset: bus ids, or indices; empty: not known which


class ValidationPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.VALIDATE.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.VALIDATE
    label: str  # names the control plane's job on the node: never used again
    rung: Rung | None = None  # of the repair ladder, where the validation stands for one
    hours: float = 0.0  # the test is repeated for this time
    suspect: bool = False  # the test is to find what makes the node suspect
    peers: tuple[str, ...] = ()  # idle nodes with which its network is tested, if they are still idle then
    gpus: int = 0  # that have to compute; 0: none, or MIG instances, of which a job's program sees a single one
    other_ports: tuple[str, ...] = ()  # over which no gang trains: they are not counted


class ManualRepairPlan(DrainPlan, frozen=True, kw_only=True, tag=RecoveryKind.MANUAL_REPAIR.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.MANUAL_REPAIR
    label: str  # id of the ticket: never used again
    replaces: bool = False  # the provider of the node is asked to replace it


class ReturnPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.RETURN.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.RETURN
    weight: int | None = None  # in Slurm, for the node's probation; None: its weight is left alone
    weight_before: int = 1  # that it had when this was decided
    drained_at: int = 0  # since when Slurm shows the drain to be lifted, by slurmctld's clock; 0: it shows none


class TakeBackPlan(DrainPlan, frozen=True, kw_only=True, tag=RecoveryKind.TAKE_BACK.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.TAKE_BACK
    renamed_nodes: tuple[str, ...] = ()  # where Slurm has drained them by itself, they get the control plane's reason


class LetGoPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.LET_GO.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.LET_GO


class RestoreWeightPlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.RESTORE_WEIGHT.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.RESTORE_WEIGHT
    weight: int | None = None  # in Slurm, that the node was given for its probation
    weight_before: int = 1  # that it had before: it gets it back


class PagePlan(PlanBase, frozen=True, kw_only=True, tag=RecoveryKind.PAGE.value):
    kind: ClassVar[RecoveryKind] = RecoveryKind.PAGE
    about: tuple[str, ...]  # nodes and jobs, as decisions name them
    reason: str
    label: str  # id of the ticket: never used again
    rule: str = ""  # by which it is sent: the same subject may need a person for something else

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys by which the page is known."""
        return tuple(page_key(self.rule, name) for name in self.about)


def page_key(rule: str, subject: str) -> str:
    return f"{rule} {subject}"


Plan = (
    PagePlan
    | PoolSwapPlan
    | AllocationSwapPlan
    | LauncherRestartPlan
    | QuarantinePlan
    | FillPoolPlan
    | LeavePoolPlan
    | ReleaseJobPlan
    | DeleteSeatsPlan
    | RepairPlan
    | ValidationPlan
    | ManualRepairPlan
    | ReturnPlan
    | TakeBackPlan
    | LetGoPlan
    | RestoreWeightPlan
)


def job_of(plan: Plan) -> JobKey | None:
    """The job that the plan moves or releases; None: it is about nodes alone."""
    return plan.job if isinstance(plan, SwapPlan | ReleaseJobPlan) else None


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    position: int
    name: StepName
    status: StepStatus = StepStatus.PLANNED
    attempts: int = 0  # reserved before acting; an attempt with an unknown outcome counts
    intended_at: float | None = None  # of the latest attempt
    done_at: float | None = None
    detail: str = ""
    communicator_at: float | None = None  # of AWAIT_FIRST_STEP: when the last rank had its process groups, if known


@dataclass(frozen=True, slots=True)
class Recovery:
    id: int
    plan: Plan
    status: RecoveryStatus
    decided_at: float
    steps: tuple[RecoveryStep, ...]
    fault_at: float = 0.0
    detected_at: float = 0.0
    ended_at: float | None = None
    outcome: str = ""
    ends_as: RecoveryStatus | None = None  # while it runs: it ends early, once what was begun is undone
    never_began: bool = False  # it failed, and its job never ran on the node: that says nothing about the node
    approve_by: float | None = None  # of a proposal: until then it may be approved; None: it was none
    approved_at: float | None = None
    approved_by: str = ""

    @property
    def swap(self) -> PoolSwapPlan | AllocationSwapPlan | None:
        """Its plan, where it moves a gang."""
        return self.plan if isinstance(self.plan, SwapPlan) else None

    def step(self, name: StepName) -> RecoveryStep | None:
        return next((step for step in self.steps if step.name is name), None)

    def with_step(self, step: RecoveryStep) -> Recovery:
        """The same recovery, in which the step of this position is now this one."""
        return replace(self, steps=tuple(step if one.position == step.position else one for one in self.steps))

    def begun(self, name: StepName) -> bool:
        """True if the step has acted, or its effect was seen."""
        step = self.step(name)
        return step is not None and (step.attempts > 0 or step.status is StepStatus.DONE)

    @property
    def drains_alone(self) -> bool:
        """It moves no gang, and has its node still to drain: Slurm has refused that so far."""
        drain = self.step(StepName.DRAIN_NODES) if isinstance(self.plan, QuarantinePlan) else None
        return drain is not None and drain.status in (StepStatus.PLANNED, StepStatus.INTENDED)

    @property
    def has_begun_to_end_attempt(self) -> bool:
        """A step that ends the gang's attempt has acted. `decide.course` asks Slurm whether that has come about."""
        ends_an_attempt = (StepName.DOWN_NODES, StepName.REQUEUE_JOB, StepName.ORDER_RESTART)
        acted = any((step := self.step(name)) is not None and step.attempts > 0 for name in ends_an_attempt)
        return self.swap is not None and (acted or self.begun(StepName.REQUEUE_JOB))


@dataclass(frozen=True, slots=True)
class FirstStepOfAll:
    """The first step that every rank of a launch has finished, and when the last one had."""

    step: int
    at: float
    communicator_at: float | None  # when the last rank had its process groups; None: not known of each


REPAIR_KINDS = (RecoveryKind.REPAIR, RecoveryKind.VALIDATE, RecoveryKind.MANUAL_REPAIR, RecoveryKind.PAGE)


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """What was tried on a node. It counts from the moment it was written down, whatever became of it."""

    recovery: int
    node: str
    kind: RecoveryKind  # REPAIR, VALIDATE or MANUAL_REPAIR
    rung: Rung | None
    at: float
    status: RecoveryStatus
    outcome: str = ""  # in words, for people
    ended_at: float | None = None
    never_began: bool = False  # it failed, and its job never ran on the node: that says nothing about the node


@dataclass(frozen=True, slots=True)
class ProposalEnding:
    proposal: int
    status: RecoveryStatus
    why: str
