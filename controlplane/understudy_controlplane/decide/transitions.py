"""How a decision changes a node's record. Pure: the store writes what is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.finding import Detail, LiftedDetail, RequestDetail
from understudy_controlplane.fleet.node import (
    IN_REPAIR,
    OF_A_SUSPECT,
    OUT_OF_SERVICE,
    DrainKind,
    NodeRecord,
    NodeState,
)
from understudy_controlplane.fleet.recovery import RestoreWeightPlan, ReturnPlan
from understudy_controlplane.fleet.suspicion import Suspicion

DISMISSES = frozenset({NodeState.IN_SERVICE, NodeState.PROBATION})
KEEPS_DRAIN = IN_REPAIR | {NodeState.MANUAL_REPAIR}
"""A node that comes here from out of service is drained already, and the drain still stands; but a repair may have
resumed it while it was reserved, so of a node that leaves its repair that is not known.
"""


class InvariantError(Exception):
    """A decision would leave a record that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Refused:
    decision: Decision
    why: str


def follow_all(
    records: Mapping[str, NodeRecord], decisions: Iterable[Decision], now: float
) -> tuple[list[Change], list[Refused]]:
    """The changes of a round. Decisions about the same node see each other's."""
    known = dict(records)
    changes: list[Change] = []
    refused: list[Refused] = []
    for decision in decisions:
        try:
            change = follow(known.get(decision.subject), decision, now)
        except InvariantError as error:
            refused.append(Refused(decision, str(error)))
            continue
        changes.append(change)
        if change.after is not None:
            known[decision.subject] = change.after
    return changes, refused


def follow(record: NodeRecord | None, decision: Decision, now: float) -> Change:
    """Raises InvariantError."""
    if record is None:
        return Change(decision)
    before, to = record.state, decision.to_state or record.state
    after = _suspicions(_weight(record, decision), decision, to, now)
    leaves = False
    dismissed = decision.clears and to in DISMISSES
    if dismissed:
        after = _cleared(after, record, decision, now)
    if decision.to_state is not None:
        leaves = before is NodeState.FOREIGN_DRAIN or (before in OUT_OF_SERVICE and to not in OUT_OF_SERVICE)
        after = _enter(after, decision, to, now)
        if leaves or decision.clears:
            after = _cleared(after, record, decision, now)
    broken = [one for one in violations(after) if one not in violations(record)]
    if broken:
        raise InvariantError(f"{record.name} would be {to.value} by row {decision.row}: {'; '.join(broken)}")
    closes_ticket = before is NodeState.MANUAL_REPAIR and to is not NodeState.MANUAL_REPAIR
    return Change(decision, record, after, ends_incident=leaves or dismissed, closes_ticket=closes_ticket)


def _cleared(after: NodeRecord, before: NodeRecord, decision: Decision, now: float) -> NodeRecord:
    detail = decision.finding.detail if decision.finding is not None else None
    at = _answered_for(before, detail, now)
    by_person = isinstance(detail, RequestDetail | LiftedDetail) and after.state is not NodeState.VALIDATING
    return replace(after, cleared_at=at, vouched_at=at if by_person else after.vouched_at)


def _answered_for(record: NodeRecord, detail: Detail | None, now: float) -> float:
    """Until when the one who returns it to service answers for what was received."""
    if isinstance(detail, RequestDetail) and detail.asked_at is not None:
        return max(record.cleared_at, detail.asked_at)
    return max(record.cleared_at, detail.after) if isinstance(detail, LiftedDetail) else now


def _enter(record: NodeRecord, decision: Decision, to: NodeState, now: float) -> NodeRecord:
    drain_kind = None
    if to is NodeState.QUARANTINED:
        drain_kind = DrainKind.AT_JOB_END if decision.action is Action.DRAIN else DrainKind.NOW
    after = replace(
        record,
        state=to,
        since=now,
        table_row=decision.row,
        drain_kind=drain_kind,
        validation_origin=decision.origin if to is NodeState.VALIDATING else None,
    )
    leaves_repair = record.state in IN_REPAIR and to not in IN_REPAIR
    if leaves_repair or not (record.state in OUT_OF_SERVICE and to in KEEPS_DRAIN):
        after = replace(after, drained_at=None, drain_reason="", drain_user="", drain_reason_at=0)
        after = replace(after, drain_settled=False, drained_under=None)
    if to not in IN_REPAIR or decision.past_boot_id:
        after = replace(after, past_boot_id=decision.past_boot_id)
    return after


def _suspicions(record: NodeRecord, decision: Decision, to: NodeState, now: float) -> NodeRecord:
    """A validation keeps them until its outcome is known."""
    kept = record.suspicions
    if to is NodeState.VALIDATING and decision.to_state is not None:
        kept = kept if decision.origin in OF_A_SUSPECT else ()
    elif to not in (NodeState.SUSPECT, NodeState.VALIDATING):
        kept = ()
    if decision.ends_suspicion is not None:
        kept = tuple(one for one in kept if one.cause is not decision.ends_suspicion)
    if to is NodeState.SUSPECT and decision.suspects is not None and not record.suspected_of(decision.suspects):
        kept = (*kept, Suspicion(decision.suspects, now))
    return replace(record, suspicions=kept)


def _weight(record: NodeRecord, decision: Decision) -> NodeRecord:
    """Known from the plan on, so before Slurm changes it: a weight that is to be given back is never forgotten."""
    plan = decision.plan
    if not isinstance(plan, ReturnPlan | RestoreWeightPlan) or plan.weight is None:
        return record
    if isinstance(plan, ReturnPlan):
        return replace(record, weight=plan.weight, weight_before=plan.weight_before)
    return replace(record, weight=None, weight_before=None)


def violations(record: NodeRecord) -> list[str]:
    """The invariants of a record that do not hold, in words."""
    state = record.state
    causes = [one.cause for one in record.suspicions]
    drain = (record.drain_reason, record.drain_user, record.drain_reason_at, record.drain_settled, record.drained_under)
    checks = (
        ("a suspect has a suspicion", state is not NodeState.SUSPECT or bool(causes)),
        (
            "only a suspect, or one that is validated, has suspicions",
            not causes or state is NodeState.SUSPECT or record.validation_origin in OF_A_SUSPECT,
        ),
        ("a suspect that is validated keeps its suspicions", record.validation_origin not in OF_A_SUSPECT or causes),
        ("a cause is suspected once", len(causes) == len(set(causes))),
        (
            "a validation has an origin, and nothing else has",
            (state is NodeState.VALIDATING) == (record.validation_origin is not None),
        ),
        (
            "a quarantine has a drain kind, and nothing else has",
            (state is NodeState.QUARANTINED) == (record.drain_kind is not None),
        ),
        ("only a node out of service has a drain of Understudy", record.drained_at is None or state in OUT_OF_SERVICE),
        ("what was read of a drain has a time", record.drained_at is not None or drain == ("", "", 0, False, None)),
        ("only a repair or validation ends a boot", not record.past_boot_id or state in IN_REPAIR),
        ("a changed weight has the weight before it", (record.weight is None) == (record.weight_before is None)),
    )
    return [f"not true: {words}" for words, holds in checks if not holds]
