"""What is planned and waits for an operator's approval. Pure.

In mode approve that is all that no person asked for. In mode act it is what follows from incidents that are older than
the mode: while the control plane only observed, people may have found them wrong, or repaired the node themselves.

Detection, table, guards and plans are those of mode act. A plan that no person asked for becomes a proposal instead,
and nothing changes until it is approved: the fault is found, and decided about, again in each round. So an approved
recovery follows from the newest facts; where these lead to other steps, nodes or jobs than those that were shown, it is
proposed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.guards import is_on_its_way, object_to_mode
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import HANGS, Finding, Signal
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import OUT_OF_SERVICE
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Verb
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    DrainPlan,
    ManualRepairPlan,
    PagePlan,
    Plan,
    PoolSwapPlan,
    ProposalEnding,
    Recovery,
    RecoveryStatus,
    ReleaseJobPlan,
    RepairPlan,
    SwapPlan,
    ValidationPlan,
    job_of,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

APPROVAL_HOLDS_SECONDS = 300.0
"""What was approved, and is not planned again within this time, is no longer so."""

FOLLOWS = HANGS | {Signal.GANG_STRANDED, Signal.GANG_STOPPED, Signal.UNDRAINED}
"""Follow from what the node is accused of already."""


@dataclass(frozen=True, slots=True)
class ProposalKey:
    """Two plans with the same key are about the same: an approval is for both where both do `the_same`, and a rejection
    where they are for the same fault.
    """

    kind: str
    nodes: frozenset[str]
    attempt: tuple[int, int, int, int]  # job, its submit time, restart count and launch; zeros: the plan is about none


def key_of(plan: Plan) -> ProposalKey:
    attempt = (0, 0, 0, 0)
    if isinstance(plan, SwapPlan | ReleaseJobPlan):
        launch = plan.launch if isinstance(plan, AllocationSwapPlan) else 0
        attempt = (plan.job.job_id, plan.job.submit_at, plan.restart_count, launch)
    return ProposalKey(plan.kind.value, frozenset(plan.nodes), attempt)


def the_same(approved: Plan, planned: Plan) -> bool:
    """True if both do the same to the same nodes and jobs. Their words may differ."""
    return _effects(approved) == _effects(planned)


def _effects(plan: Plan) -> tuple[object, ...]:
    rung = plan.rung if isinstance(plan, RepairPlan | ValidationPlan) else None
    gpus = plan.gpus if isinstance(plan, RepairPlan) else ()
    preempted = plan.preempted if isinstance(plan, PoolSwapPlan) else ()
    places = plan.places if isinstance(plan, AllocationSwapPlan) else ()
    leaving = plan.leaving if isinstance(plan, SwapPlan) else ()
    return (plan.steps, frozenset(plan.claimed), frozenset(leaving), frozenset(preempted), places, rung, gpus)


def await_approval(snapshot: Snapshot, decisions: Sequence[Decision], config: Config) -> list[Decision]:
    """The same decisions, with a proposal in the place of each plan that is not approved."""
    if snapshot.mode is Mode.OBSERVE:
        return list(decisions)
    known = _by_key(snapshot)
    return [_await(snapshot, _unless_observed(snapshot, one), known, config) for one in decisions]


def _unless_observed(snapshot: Snapshot, decision: Decision) -> Decision:
    """A plan may touch more nodes than the guards were asked about."""
    plan = decision.plan
    if plan is None or _only_notifies(plan):
        return decision
    by_mode = object_to_mode(snapshot, *_works_on(plan))
    return withheld(decision, by_mode.because, by_mode.words) if by_mode is not None else decision


def _by_key(snapshot: Snapshot) -> dict[ProposalKey, list[Recovery]]:
    """Newest first."""
    found: dict[ProposalKey, list[Recovery]] = {}
    for one in reversed(snapshot.proposals):
        found.setdefault(key_of(one.plan), []).append(one)
    return found


def awaits_approval(snapshot: Snapshot, node: str) -> bool:
    """True if what is planned for the node is not done yet."""
    asks = snapshot.mode_of([node]) is Mode.APPROVE or _is_older_than_mode(snapshot, Subject.of_node(node))
    return asks and not _is_approved(snapshot, node)


def waits_from_before(snapshot: Snapshot, finding: Finding) -> bool:
    """True if it was known before mode act, and no operator has approved what follows: it must not hide a new fault."""
    return _is_older_than_mode(snapshot, finding.subject, finding) and not _is_approved(snapshot, finding.node)


def _is_approved(snapshot: Snapshot, node: str) -> bool:
    return any(one.status is RecoveryStatus.APPROVED and node in one.plan.nodes for one in snapshot.proposals)


def endings(snapshot: Snapshot) -> Iterator[ProposalEnding]:
    """Endings of proposals: not approved in time, superfluous by another one, or their job is gone."""
    approved = {key_of(one.plan): one for one in snapshot.proposals if one.status is RecoveryStatus.APPROVED}
    begun = {key_of(one.plan): one.id for one in snapshot.recoveries}
    waiting = (RecoveryStatus.AWAITS_APPROVAL, RecoveryStatus.APPROVED)
    for one in snapshot.proposals:
        if one.status in waiting and (over := _job_is_over(snapshot, one.plan)):
            yield ProposalEnding(one.id, RecoveryStatus.OVERTAKEN, over)
            continue
        if one.status is RecoveryStatus.AWAITS_APPROVAL and snapshot.now >= (one.approve_by or 0.0):
            yield ProposalEnding(one.id, RecoveryStatus.EXPIRED, "no operator approved it in time")
        elif one.status is RecoveryStatus.AWAITS_APPROVAL and _is_dismissed(snapshot, one):
            yield ProposalEnding(one.id, RecoveryStatus.OVERTAKEN, "an operator dismissed what was known of its nodes")
        elif one.status is RecoveryStatus.AWAITS_APPROVAL and (same := begun.get(key_of(one.plan), 0)) > one.id:
            yield ProposalEnding(one.id, RecoveryStatus.OVERTAKEN, f"recovery {same} has begun in its place")
        if one.status is RecoveryStatus.APPROVED and _is_too_old(snapshot, one):
            yield ProposalEnding(one.id, RecoveryStatus.OVERTAKEN, "it was approved, and is not needed any more")
        elif one.status is RecoveryStatus.APPROVED and (later := approved[key_of(one.plan)]) is not one:
            words = f"what is planned has changed since: approved as recovery {later.id}"
            yield ProposalEnding(one.id, RecoveryStatus.OVERTAKEN, words)


def _job_is_over(snapshot: Snapshot, plan: Plan) -> str:
    """Why its job, or the attempt that it would end, is not there any more; empty: it is, or Slurm was not read yet."""
    key = job_of(plan)
    if key is None or snapshot.slurm.read_at is None:
        return ""
    job = snapshot.jobs.get(key)
    if job is None or job.slurm.ended:
        return f"job {key.job_id} has ended"
    if isinstance(plan, SwapPlan) and job.running and job.slurm.restart_count > plan.restart_count:
        return f"job {key.job_id} was restarted meanwhile (restart {job.slurm.restart_count})"
    return ""


def _is_dismissed(snapshot: Snapshot, proposed: Recovery) -> bool:
    nodes = [snapshot.nodes[name] for name in proposed.plan.nodes if name in snapshot.nodes]
    return bool(nodes) and all(node.record.cleared_at > proposed.decided_at for node in nodes)


def _is_too_old(snapshot: Snapshot, approved: Recovery) -> bool:
    return snapshot.now >= (approved.approved_at or 0.0) + APPROVAL_HOLDS_SECONDS


def _await(
    snapshot: Snapshot, decision: Decision, known: Mapping[ProposalKey, Sequence[Recovery]], config: Config
) -> Decision:
    """What was approved counts also where something else was proposed since, for a round in which it was planned."""
    plan = decision.plan
    if plan is None or not _needs_approval(snapshot, decision, plan):
        return decision
    proposals = [one for one in known.get(key_of(plan), ()) if not _is_of_other_fault(one, decision)]
    proposal = proposals[0] if proposals else None
    if proposal is not None and proposal.status is RecoveryStatus.CANCELLED:
        words = f"an operator rejected it as recovery {proposal.id}"
        return withheld(decision, Because.CANCELLED, words)
    if proposal is not None and proposal.status is RecoveryStatus.APPROVED and _is_too_old(snapshot, proposal):
        return withheld(decision, Because.AWAITS_APPROVAL, "its approval is too old")
    for one in proposals:
        holds = one.status is RecoveryStatus.APPROVED and not _is_too_old(snapshot, one)
        if holds and the_same(one.plan, plan):
            return replace(decision, proposal=one.id, reason=f"{decision.reason}; approved by {one.approved_by}")
    changed = proposal is not None and proposal.status is RecoveryStatus.APPROVED
    words = "it waits for an operator's approval"
    if proposal is not None and changed:
        words = f"what was approved as recovery {proposal.id} has changed since: {words} again"
    held = withheld(decision, Because.AWAITS_APPROVAL, words)
    if proposal is not None and not changed and snapshot.now < (proposal.approve_by or 0.0):
        return held
    return replace(held, proposed=plan, approve_by=snapshot.now + config.recovery.approval_seconds)


def _is_of_other_fault(proposal: Recovery, decision: Decision) -> bool:
    rejected = proposal.status is RecoveryStatus.CANCELLED
    return rejected and decision.finding is not None and not is_refused(proposal, decision.finding)


def is_refused(recovery: Recovery, finding: Finding) -> bool:
    """True if who cancelled or rejected the recovery knew of this fault, or of what it follows from. What another rule
    has found since then is something else.
    """
    rules = recovery.plan.rules if isinstance(recovery.plan, DrainPlan) else ()
    known = finding.signal in FOLLOWS or finding.at <= (recovery.ended_at or math.inf)
    return not rules or known or finding.rule in rules


def is_rejected(snapshot: Snapshot, finding: Finding) -> bool:
    """True if an operator has rejected what follows from it: it must not hide what another rule finds."""
    return any(
        one.status is RecoveryStatus.CANCELLED
        and isinstance(one.plan, DrainPlan)
        and finding.node in one.plan.nodes
        and finding.rule in one.plan.rules
        for one in snapshot.proposals
    )


def _only_notifies(plan: Plan) -> bool:
    return isinstance(plan, PagePlan) or (isinstance(plan, ManualRepairPlan) and not plan.replaces)


def _needs_approval(snapshot: Snapshot, decision: Decision, plan: Plan) -> bool:
    """Not a ticket, which changes nothing in Slurm; what a person asked for; and what goes on from a recovery that was
    approved: a gang on its way does not wait between two attempts. One whose processes have started works: what stops
    it again is a fault of its own.
    """
    if _only_notifies(plan):
        return False
    if snapshot.mode_of(*_works_on(plan)) is not Mode.APPROVE and not _is_of_old_incident(snapshot, decision):
        return False
    if plan.supersedes is not None and (not isinstance(plan, SwapPlan) or is_on_its_way(snapshot, plan.job)):
        return False
    return not plan.requested or _asked_by_control_plane(snapshot, decision)


def _works_on(plan: Plan) -> tuple[tuple[str, ...], JobKey | None]:
    return (*plan.nodes, *plan.claimed), job_of(plan)


def _is_of_old_incident(snapshot: Snapshot, decision: Decision) -> bool:
    """A node that was taken out of service then goes on with its repair."""
    node = snapshot.nodes.get(decision.subject)
    if node is not None and node.state in OUT_OF_SERVICE:
        return False
    subjects = {Subject.of_node(decision.subject)}
    subjects |= {decision.finding.subject} if decision.finding is not None else set()
    return any(_is_older_than_mode(snapshot, one, decision.finding) for one in subjects)


def _is_older_than_mode(snapshot: Snapshot, subject: Subject, finding: Finding | None = None) -> bool:
    """A rule that has accused the subject only since then has found a new fault."""
    incident, acting = snapshot.incidents.get(subject), snapshot.operator.acting
    if snapshot.configured_mode(subject) is not Mode.ACT or incident is None or acting is None or acting.since is None:
        return False
    known = acting.known.get(incident.id)
    return known is not None and (finding is None or finding.rule in known or finding.at < acting.since)


def unnoted(snapshot: Snapshot) -> dict[int, frozenset[str]]:
    """Open incidents of parts that do not act while others do, and the rules that accuse their subjects, as far as that
    is not noted yet: what follows waits for an operator's approval where that part acts later.
    """
    acting = snapshot.operator.acting
    known = acting.known if acting is not None else {}
    if not snapshot.part_modes or snapshot.mode is not Mode.ACT:
        return {}
    observed = [one for subject, one in snapshot.incidents.items() if snapshot.configured_mode(subject) is not Mode.ACT]
    rules = {one.id: known.get(one.id, frozenset()).union(one.rules) for one in observed}
    return {number: found for number, found in rules.items() if found != known.get(number)}


def _asked_by_control_plane(snapshot: Snapshot, decision: Decision) -> bool:
    """Such as the validation of a new node. That a hold ends was asked for by a person."""
    request = snapshot.operator.requests.get(decision.subject)
    if request is None or request.id != decision.request:
        return False
    return request.by == BY_CONTROL_PLANE and request.verb is not Verb.RELEASE


def withheld(decision: Decision, because: Because, words: str) -> Decision:
    return replace(
        decision,
        action=Action.NOTHING,
        because=because,
        reason=f"{decision.reason}; but nothing is done yet, because {words}",
        to_state=None,
        plan=None,
        clears=False,
        past_boot_id="",
        request=None,
        suspects=None,
        ends_suspicion=None,
        origin=None,
    )
