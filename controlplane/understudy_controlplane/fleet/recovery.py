"""Plans, their journalled steps, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.fleet.job import JobKey

SEATS_PREFIX = "understudy_seats_"
"""Names of the reservations that hold a gang's seats; its job id follows."""


NODE_HOLD_PREFIX = "understudy_node_"
"""Names of the reservations that keep a node for us alone while we work on it; its name follows."""


class Rung(StrEnum):
    """The repair ladder, from below."""

    RESTART_APP = "restart_app"  # the gang was moved; the node itself needs nothing
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    MANUAL_REPAIR = "manual_repair"  # a person's


class RecoveryKind(StrEnum):
    POOL_SWAP = "pool"  # the gang moves to a spare from the pool
    ALLOCATION_SWAP = "allocation"  # its launcher moves the gang to a spare of its own allocation
    QUARANTINE = "quarantine"  # nodes leave service; no gang of ours is moved
    FILL_POOL = "fill_pool"  # nodes join the spare pool
    RELEASE_JOB = "release_job"  # a job that our Prolog kept off a node goes on elsewhere
    REPAIR = "repair"  # a rung of the repair ladder is tried on a node
    VALIDATE = "validate"  # a node is tested before it returns
    MANUAL_REPAIR = "manual_repair"  # a person is asked to look after a node
    RETURN = "return"  # a node that is well goes back to work
    TAKE_BACK = "take_back"  # a node that we had in hands is drained, and its reservation given up
    LET_GO = "let_go"  # somebody took a node from us: what we still hold of it is given up
    RESTORE_WEIGHT = "restore_weight"  # probation is over: the node's weight in Slurm is what it was before


class StepName(StrEnum):
    """Imperatives, in the order in which plans use them."""

    DRAIN_NODES = "drain_nodes"
    TELL_LAUNCHER = "tell_launcher"
    HOLD_SEATS = "hold_seats"
    TAKE_SPARES = "take_spares"
    BIND_JOB = "bind_job"
    DOWN_NODES = "down_nodes"
    REQUEUE_JOB = "requeue_job"
    START_JOB = "start_job"
    RELEASE_SEATS = "release_seats"
    AWAIT_PROCESSES = "await_processes"
    AWAIT_FIRST_STEP = "await_first_step"
    CREDIT_TIME = "credit_time"
    FILL_POOL = "fill_pool"
    RELEASE_JOB = "release_job"
    HOLD_NODE = "hold_node"
    RESUME_NODE = "resume_node"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    RUN_VALIDATION = "run_validation"
    OPEN_TICKET = "open_ticket"
    RAISE_WEIGHT = "raise_weight"
    RELEASE_NODE = "release_node"
    RESTORE_WEIGHT = "restore_weight"


JOBS_ON_A_NODE = frozenset({StepName.RESET_GPU, StepName.RUN_VALIDATION})
"""Steps that are a job of ours on the node. What their plans have before them only prepares it."""


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about a decision: data only, written down before anything happens."""

    kind: RecoveryKind
    steps: tuple[StepName, ...]
    failed_nodes: tuple[str, ...] = ()
    dead_nodes: tuple[str, ...] = ()  # those of them that no longer answer Slurm
    spares: tuple[str, ...] = ()
    seats: tuple[str, ...] = ()  # where the gang is to run: its healthy nodes and the spares
    job: JobKey | None = None
    user: str = ""  # of the job
    submit_at: int = 0  # as Slurm showed it when this was decided: a requeue changes it
    restart_count: int = 0  # of the attempt that is given up
    last_step: int | None = None  # the furthest step that attempt was seen to finish
    supersedes: int | None = None  # id of an unfinished recovery of the same job
    drain_reason: str = ""
    reservation: str = ""  # in which the job ran before: it gets it back
    launch: int = -1  # of the gang within its allocation, that is given up; -1: none is
    hang: str = ""  # why the gang is started anew though no rank of it has ended
    leaving: tuple[str, ...] = ()  # nodes that give their seat to a spare, and are not failed
    fault_at: float = 0.0
    time_limit_minutes: int | None = None  # of the job when this was decided
    credit_minutes_max: int = 0  # by so much it may be raised for this fault
    renamed_nodes: tuple[str, ...] = ()  # drained by Slurm because of our Prolog: they are given our reason
    rung: Rung | None = None  # of the repair ladder
    hours: float = 0.0  # a test is repeated for so long
    label: str = ""  # names our jobs and tickets: never used again
    suspect: bool = False  # a test that is to find what makes the node suspect
    gpus: tuple[str, ...] = ()  # that are to be reset: bus ids, or indices; empty: not known which
    weight: int | None = None  # in Slurm, that the node is given for its probation; None: its weight is left alone
    weight_before: int = 1  # that it had when this was decided: it gets it back


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    position: int
    name: StepName
    status: StepStatus = StepStatus.PLANNED
    attempts: int = 0  # reserved before acting; an attempt with an unknown outcome counts
    intended_at: float | None = None  # of the latest attempt
    done_at: float | None = None
    detail: str = ""


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

    def step(self, name: StepName) -> RecoveryStep | None:
        return next((step for step in self.steps if step.name is name), None)


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
