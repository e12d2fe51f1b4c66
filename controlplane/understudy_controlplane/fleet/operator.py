"""What operators ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from understudy_controlplane.config import Mode
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.saving import SaveRequest


class Verb(StrEnum):
    PAUSE = "pause"
    PAUSE_NOW = "pause-now"  # also halts what is under way
    RESUME = "resume"
    HOLD = "hold"  # a node leaves service and is left alone
    QUARANTINE = "quarantine"  # the node is faulty: treated like a fault that the control plane found itself
    RELEASE = "release"  # the node returns
    RETIRE = "retire"  # the node leaves service for good
    VALIDATE = "validate"  # the node is validated, as after a repair: a new node, or one that a user suspects
    BURN_IN = "burn-in"  # the same validation, repeated for some hours
    RESET_BREAKER = "reset-breaker"
    MODE_OBSERVE = "mode-observe"  # the control plane does no more than in this mode
    MODE_APPROVE = "mode-approve"
    MODE_CONFIGURED = "mode-configured"  # the mode is the configured one again
    ACT_BEGAN = "act-began"  # the control plane's own note: from then on it was in mode act
    ACT_ENDED = "act-ended"
    CANCEL = "cancel"  # a recovery under way
    APPROVE = "approve"  # a recovery that waits for it
    AGREE = "agree"  # with a decision that the control plane only observed
    DISAGREE = "disagree"
    ACKNOWLEDGE_TICKET = "acknowledge-ticket"
    CLOSE_TICKET = "close-ticket"
    PAUSE_JOB = "pause-job"  # the control plane begins nothing for this job
    RESUME_JOB = "resume-job"
    MOVE_JOB = "move-job"  # its gang leaves nodes that stay in service
    SPARES_SIZE = "spares-size"  # how many spares the pool is to hold
    SPARE_ADD = "spare-add"  # a node is in the pool whenever no job uses it
    SPARE_REMOVE = "spare-remove"  # a node is never in the pool
    SPARE_FORGET = "spare-forget"  # the control plane chooses again whether a node is in the pool
    DRILL = "drill"  # an Xid is injected
    END_DRILL = "end-drill"
    SIGNAL = "signal"  # another system of the site reports something
    END_SIGNAL = "end-signal"  # that is over, or was wrong
    START_MAINTENANCE = "start-maintenance"
    PAUSE_MAINTENANCE = "pause-maintenance"
    RESUME_MAINTENANCE = "resume-maintenance"
    END_MAINTENANCE = "end-maintenance"
    SAVE_JOB = "save-job"  # all ranks of its gang save a checkpoint
    TRUST_CHECKPOINTS = "trust-checkpoints"  # of a job, although NaN or jumps were reported


NODE_VERBS = (Verb.HOLD, Verb.QUARANTINE, Verb.RELEASE, Verb.RETIRE, Verb.VALIDATE, Verb.BURN_IN)
"""About one node. A decision of the loop answers such a request."""

NOTES = (Verb.ACT_BEGAN, Verb.ACT_ENDED)
"""The control plane's own notes on its mode. They are kept beside the requests, and are no requests."""

REPLACES: Mapping[Verb, tuple[Verb, ...]] = {
    **dict.fromkeys(NODE_VERBS, (*NODE_VERBS, Verb.DRILL)),
    **{one: (one,) for one in (Verb.CANCEL, Verb.PAUSE_JOB, Verb.MOVE_JOB, Verb.SAVE_JOB, Verb.DRILL)},
    Verb.RESUME_JOB: (Verb.PAUSE_JOB,),
}
"""Verb → requests about the same subject that it replaces while they wait for an answer."""

WAITING = frozenset(one for replaced in REPLACES.values() for one in replaced)
"""Requests that wait for an answer. All others take effect at once."""

SWITCHES = (Verb.PAUSE, Verb.PAUSE_NOW, Verb.RESUME)
MODES = {Verb.MODE_OBSERVE: Mode.OBSERVE, Verb.MODE_APPROVE: Mode.APPROVE, Verb.MODE_CONFIGURED: Mode.ACT}
"""The most that the control plane does."""

FLEET = "fleet"
"""Subject of a request about the whole."""

SPARE_CHOICES: Mapping[Verb, bool | None] = {Verb.SPARE_ADD: True, Verb.SPARE_REMOVE: False, Verb.SPARE_FORGET: None}
"""True if the node is to be in the pool; None: the control plane chooses."""

LASTING = (*SWITCHES, *MODES, *NOTES, Verb.SPARES_SIZE, *SPARE_CHOICES, Verb.RESET_BREAKER)
"""Requests that took effect at once, and hold until a newer one about the same subject."""


@dataclass(frozen=True, slots=True)
class Acting:
    """Mode act. `known`: open incident → the rules that accused its subject when that mode began."""

    since: float | None
    known: Mapping[int, frozenset[str]]


class Outcome(StrEnum):
    """What will come of a request, as far as is known when it is made."""

    WILL_ACT = "will_act"
    OBSERVE_ONLY = "observe_only"  # the control plane only observes: nothing is done
    HELD_BY_GUARD = "held_by_guard"  # it is done as soon as a guard no longer objects
    AWAITS_APPROVAL = "awaits_approval"  # by an operator


class RequestStatus(StrEnum):
    """What became of a request."""

    WAITING = "waiting"  # no decision has answered it, or its recovery is under way
    DONE = "done"
    GIVEN_UP = "given_up"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Prospect:
    outcome: Outcome
    why: str
    warning: str = ""  # what speaks against it; empty: nothing is known


BY_CONTROL_PLANE = "understudy"
"""Who made a request that no person made, such as the one for a new node."""


_RECOVERY = "recovery "


def cancel_subject(recovery: int) -> str:
    """What a request to cancel a recovery is about. No node has such a name."""
    return f"{_RECOVERY}{recovery}"


def recovery_of(subject: str) -> int:
    """The recovery that `cancel_subject` names."""
    return int(subject.removeprefix(_RECOVERY))


_DECISION = "decision "


def decision_subject(decision: int) -> str:
    """What an answer to a decision is about."""
    return f"{_DECISION}{decision}"


def decision_of(subject: str) -> int:
    """The decision that `decision_subject` names."""
    return int(subject.removeprefix(_DECISION))


def job_subject(job_id: int) -> str:
    """What a request about a job is about. No node has such a name."""
    return f"{_JOB}{job_id}"


def job_of_subject(subject: str) -> int:
    """The job id that `job_subject` names."""
    return int(subject.removeprefix(_JOB))


_JOB = "job "


@dataclass(frozen=True, slots=True)
class JobPause:
    """The control plane leaves a job alone."""

    reason: str
    by: str
    at: float
    until: float | None  # when it ends by itself; None: a person resumes the job
    submit_at: int  # of the job that is meant: Slurm uses job ids again

    @property
    def words(self) -> str:
        return f"{self.reason} ({self.by})"

    def concerns(self, job: JobKey) -> bool:
        return job.submit_at == self.submit_at


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A gang leaves nodes, which stay in service. Not answered by a decision yet."""

    id: int
    off: tuple[str, ...]
    reason: str
    by: str
    at: float
    submit_at: int  # as in `JobPause`
    at_checkpoint: bool = False  # not before the next complete checkpoint
    checkpoint_at: float | None = None  # when the job's newest complete checkpoint was announced

    def concerns(self, job: JobKey) -> bool:
        return job.submit_at == self.submit_at


@dataclass(frozen=True, slots=True)
class Request:
    """What an operator asked for."""

    id: int
    subject: str  # a node, or as of `job_subject` and the like
    verb: Verb
    reason: str
    by: str
    at: float
    until: float | None = None  # when it ends by itself; None: a person ends it
    detail: Mapping[str, Any] = field(default_factory=dict)  # what else it names, such as the nodes that a gang leaves

    @property
    def words(self) -> str:
        return f"{self.reason} ({self.by})"

    def is_over(self, now: float) -> bool:
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class TimedHold:
    """The newest request about a node that is still held by it."""

    request: Request
    taken_from: NodeState  # the node's state before


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """What may hold now, oldest first. `decide/requests_in_force.py` judges what does."""

    waiting: Sequence[Request]
    lasting: Sequence[Request]  # the newest of each verb about each subject
    timed_holds: Sequence[TimedHold] = ()
    breaker_opened_at: float | None = None
    breaker_opened: str = ""  # why
    breaker_for_other_leader: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str = ""  # who paused the control plane and why; empty: it is not paused
    halts: bool = False  # what is under way stops as well
    until: float | None = None  # when it ends by itself; None: a person resumes


@dataclass(frozen=True, slots=True)
class ModeLimit:
    """Mode that an administrator set as the control plane's limit."""

    mode: Mode = Mode.ACT
    reason: str = ""  # who set it and why; empty: there is no limit
    until: float | None = None  # when it ends by itself; None: an administrator ends it


@dataclass(frozen=True, slots=True)
class SparesSize:
    """How many spares an operator wants."""

    count: int | None = None  # None: as configured
    reason: str = ""  # who wants them and why


@dataclass(frozen=True, slots=True)
class Breaker:
    reason: str = ""  # why it is open; empty: it is closed
    reset_at: float = 0.0  # when a person last closed it: earlier quarantines count no more for it; 0: never
    holds_all: bool = False  # nothing at all is begun in Slurm


@dataclass(frozen=True, slots=True)
class InForce:
    """What operators asked for, as far as it holds now."""

    pause: Pause
    mode_limit: ModeLimit
    acting: Acting | None  # None: that was never noted
    breaker: Breaker
    spares_size: SparesSize
    spare_choices: Mapping[str, bool]  # node → whether it is to be in the spare pool
    nodes: Mapping[str, Request]  # node → the latest request that no decision has answered
    cancels: Mapping[int, Request]  # by recovery
    job_pauses: Mapping[int, JobPause]  # by job id, like the following
    moves: Mapping[int, MoveRequest]
    saves: Mapping[int, SaveRequest]
    drills: Mapping[str, Drill]  # by node, those that have not ended
    ended_holds: Mapping[str, TimedHold]  # by node, those of which the time is over


@dataclass(frozen=True, slots=True)
class Ending:
    """The time of a request is over. `release`: why its node is to return; empty: it is not."""

    request: int
    node: str
    verb: Verb
    release: str
    why: str
