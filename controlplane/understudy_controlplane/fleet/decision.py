"""A decision is a value. "Nothing, because …" is one too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from understudy_controlplane.fleet.evidence import NO_EVIDENCE, Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, LaunchDetail
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState, ValidationOrigin
from understudy_controlplane.fleet.recovery import Plan
from understudy_controlplane.fleet.suspicion import SuspicionCause


class Action(StrEnum):
    NOTHING = "nothing"
    QUARANTINE = "quarantine"  # take the node out of service, and move a managed gang that runs there
    DRAIN = "drain"  # take the node out of service; what runs there goes on to its end
    DRAIN_AGAIN = "drain_again"
    MOVE_GANG = "move_gang"  # the node is out of service already; the gang on it is not safe yet
    RESTART_GANG = "restart_gang"  # it hangs; no node is taken out of service for that
    CREDIT_TIME = "credit_time"  # its launcher has restarted the gang by itself: the time limit gets what that cost
    FILL_POOL = "fill_pool"
    LEAVE_POOL = "leave_pool"
    RELEASE_JOB = "release_job"  # Understudy's Prolog kept it off a node, and Slurm holds it for that
    REPAIR = "repair"  # try the next rung of the repair ladder
    VALIDATE = "validate"  # test the node before it returns
    ASK_PERSON = "ask_person"  # a ticket, with the evidence
    RETURN = "return"  # the node goes back to work
    TAKE_BACK = "take_back"  # drain it again, then give up the reservation that kept it for the control plane
    LET_GO = "let_go"  # an administrator took it: give up what the control plane still holds of it
    RESTORE_WEIGHT = "restore_weight"  # that it had in Slurm before its probation
    HOLD = "hold"  # an operator wants it out of service
    PAGE = "page"  # notify a person of what a guard holds back
    OPEN_BREAKER = "open_breaker"


TAKES_OUT = (Action.QUARANTINE, Action.DRAIN)
"""Actions that take a node out of service, and are counted by the guards."""


class Quarantine(NamedTuple):
    at: float
    node: str
    rule: str


class Because(StrEnum):
    """Why an action is, or is not, taken now. Part of what makes two decisions the same."""

    RULE = "rule"  # the table alone decides
    DRY_RUN = "dry_run"
    PAUSED = "paused"
    SLURM_UNREADABLE = "slurm_unreadable"
    GATHERING = "gathering"
    FLEET_BUDGET = "fleet_budget"
    HOURLY_BUDGET = "hourly_budget"
    RULE_BUDGET = "rule_budget"
    JOB_BUDGET = "job_budget"
    RESTART_BUDGET = "restart_budget"
    RELEASE_BUDGET = "release_budget"
    FOREIGN_POOL = "foreign_pool"
    NO_SPARE = "no_spare"
    RULE_DRY_RUN = "rule_dry_run"
    BREAKER = "breaker"
    OTHER_LEADER = "other_leader"  # another control plane leads here, or did until a person ended that
    DOMAIN_BUDGET = "domain_budget"
    REPAIR_BUDGET = "repair_budget"
    COOLDOWN = "cooldown"
    BUSY = "busy"
    MAINTENANCE = "maintenance"  # of an operator, or an administrator's in Slurm
    MASS_SILENCE = "mass_silence"
    MASS_HANG = "mass_hang"
    MOVE_BUDGET = "move_budget"
    PARTITION_DOWN = "partition_down"  # Slurm would not start the gang again
    DETECTOR_FAILED = "detector_failed"  # nothing returns to service on what is not known
    DECISION_FAILED = "decision_failed"  # this decision, or one that belongs to it
    AWAITS_APPROVAL = "awaits_approval"  # in mode approve, or of an incident that is older than mode act
    LEFT_TO_PERSON = "left_to_person"  # Understudy cannot move this gang, and waiting changes nothing
    CANCELLED = "cancelled"  # an operator cancelled the recovery that this would repeat


HELD_FOR_PEOPLE = (Because.DRY_RUN, Because.RULE_DRY_RUN, Because.AWAITS_APPROVAL)
"""Why decisions do nothing that would have acted: the mode, `observe_rules`, an approval that is awaited."""


class DecisionKey(NamedTuple):
    """Two decisions with the same key say the same."""

    subject: str
    text: str


class Stays(NamedTuple):
    """A gang that only a person can move, and why."""

    job: JobKey
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    row: int  # number in `decide.table`
    subject: str  # a node's name, a domain's name, "fleet", or "job" with its id
    action: Action
    because: Because
    reason: str  # one line for people
    to_state: NodeState | None = None  # None: the node stays what it is
    finding: Finding | None = None
    evidence: Evidence = NO_EVIDENCE
    opens_incident: bool = False
    plan: Plan | None = None  # only on a decision that acts
    clears: bool = False  # with a change of state: what was known against the node counts no more
    past_boot_id: str = ""  # the boot that this decision ends
    request: int | None = None  # the operator's request that this decision answers
    suspects: SuspicionCause | None = None  # a suspicion that the node gets, if it is a suspect now
    ends_suspicion: SuspicionCause | None = None
    origin: ValidationOrigin | None = None  # with VALIDATING
    proposed: Plan | None = None  # that waits for approval from now on
    approve_by: float | None = None  # with `proposed`
    stays: Stays | None = None  # the gang that it leaves to a person
    proposal: int | None = None  # the recovery as which the plan was proposed and approved

    @property
    def key(self) -> DecisionKey:
        """A decision with the key of one that is recorded, and still holds, is not recorded again."""
        parts = [self.subject, str(self.row), self.action.value, self.because.value]
        if self.to_state is None and self.finding is not None:
            seen = self.finding.detail
            hardware = seen if isinstance(seen, HardwareDetail) else HardwareDetail()
            parts += [self.finding.rule, hardware.boot_id, hardware.part]
            parts += [f"{seen.restart_count}.{seen.launch}"] if isinstance(seen, LaunchDetail) else []
        return DecisionKey(self.subject, "|".join(parts))

    @property
    def once(self) -> bool:
        """About events of one boot of a node: recorded once for each kind, not in each round that sees them. What holds
        one back is recorded again after something else did.
        """
        detail = self.finding.detail if self.finding is not None else None
        answered = self.to_state is None and self.because is Because.RULE
        return answered and isinstance(detail, HardwareDetail) and detail.is_event


@dataclass(frozen=True, slots=True)
class HeldDecision:
    """Decision that would have acted in mode act. `approved`: its proposal was approved or rejected; None: neither."""

    id: int
    at: float
    subject: str
    rule: str
    approved: bool | None = None
