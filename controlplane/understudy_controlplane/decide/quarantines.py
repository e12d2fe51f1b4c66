"""Nodes that the table condemns: each asks the guards, and those let through are planned gang by gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from understudy_controlplane.decide import guards, plans, repair_actions, spares
from understudy_controlplane.decide.allocation_swap import seats_of
from understudy_controlplane.decide.approvals import awaits_approval
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.gang_moves import Move, gang_moves, gangs_on, move_key
from understudy_controlplane.decide.table import Condition, Row, row_without_node
from understudy_controlplane.fleet.custody import Holder
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import HANGS, Finding, Signal
from understudy_controlplane.fleet.node import HELD_BY_PEOPLE, DrainKind, NodeState
from understudy_controlplane.fleet.recovery import Plan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

BUDGETS = (Because.FLEET_BUDGET, Because.HOURLY_BUDGET, Because.DOMAIN_BUDGET)
"""Budgets that keep no gang on a node. The budget of a rule does: the rule may be wrong about the gang as well."""

STANDING = (Signal.NODE_DEAD, Signal.HARDWARE_FAULT)
"""Found in each round, also of a node that an administrator has taken."""


STAYS_IN_SERVICE = frozenset({Signal.MOVE_ASKED, Signal.NEWCOMER_FAILED})
"""Nothing proves the node itself to be at fault: a gang leaves it, and no drain follows."""


def condemnations(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    """What cannot wait asks the guards first."""
    snapshot, config = current.snapshot, current.config
    condemned = [_with_generation(snapshot, one) for one in entered]
    held: list[tuple[Entered, guards.Objection]] = []
    allowed: list[Entered] = []
    new = {one.finding.node for one in current.left_out if one.row.action in TAKES_OUT}
    for one in sorted(condemned, key=_can_wait):
        takes_out = one[0].action in TAKES_OUT
        objection = (
            guards.object_to_quarantine(snapshot, config, one[1], already=new)
            if takes_out
            else guards.object_to_gang_action(snapshot, config, one[1])
            if one[0].action in (Action.MOVE_GANG, Action.RESTART_GANG)
            else guards.object_to_any(snapshot, one[1], proven=one[0].action is Action.DRAIN_AGAIN)  # it was decided
        )
        if objection is None:
            allowed.append(one)
            new |= {one[1].node} if takes_out else set()
        else:
            held.append((one, objection))
    decisions = [_held_back(snapshot, *pair) for pair in held]
    too_many = _one_too_many(current, decisions, new)
    if too_many and not snapshot.operator.breaker:
        decisions.append(_breaker(current, too_many, new))
    undrained = [] if too_many else [one[1] for one, objection in held if _leaves(snapshot, one, objection)]
    settled = {one[1].node for one in allowed if _goes_before_hang(snapshot, one)} | {one.node for one in undrained}
    allowed = [one for one in allowed if one[1].signal not in HANGS or one[1].node not in settled]
    moving = [one[1] for one in allowed if _gangs_move(snapshot, one)]
    if moving or undrained:
        stay = [*undrained, *(one for one in moving if one.signal in STAYS_IN_SERVICE)]
        current = replace(current, undrained=frozenset(one.node for one in stay)).with_idle()
    doubted = frozenset(one[1].node for one, objection in held if objection.because is Because.RULE_BUDGET)
    moves = gang_moves(replace(current, doubted=doubted), moving + undrained)
    for i, ((_, finding), objection) in enumerate(held):
        if finding in undrained and move_key(finding) in moves:
            decisions[i] = _moved_all_the_same(decisions[i], moves[move_key(finding)], objection)
    return decisions + _each_answered_once([_act(snapshot, one, moves.get(move_key(one[1]))) for one in allowed])


def _goes_before_hang(snapshot: Snapshot, condemned: Entered) -> bool:
    """True if the hang of a gang there is looked at in the next round, when this is done. What a guard holds back, and
    a drain for the job's end that waits for its approval, may wait for longer than a gang should.
    """
    row, finding = condemned
    waits = finding.signal in (Signal.MOVE_ASKED, Signal.GANG_STOPPED) or (
        row.action is Action.DRAIN and awaits_approval(snapshot, finding.node)
    )
    return finding.signal not in HANGS and not waits


def _each_answered_once(decisions: Sequence[Decision]) -> list[Decision]:
    """A request about several nodes is answered by the first decision."""
    answered: set[int | None] = set()
    found = []
    for one in decisions:
        found.append(replace(one, request=None) if one.request in answered else one)
        answered.add(one.request)
    return found


def _with_generation(snapshot: Snapshot, entered: Entered) -> Entered:
    row, finding = entered
    if not finding.node:
        return entered
    evidence = finding.evidence.with_more({"generation": snapshot.nodes[finding.node].generation})
    return Entered(row, replace(finding, evidence=evidence))


def _can_wait(condemned: Entered) -> int:
    """What can wait leaves the guards' room to what cannot. No job can use a node that failed its validation."""
    row, finding = condemned
    if finding.signal is Signal.GANG_STOPPED:
        return 3  # the incident of its node is opened first
    if _failed_validation(row):
        return 2
    return 1 if row.action is Action.DRAIN else 0


def _one_too_many(current: Round, held_back: Sequence[Decision], new: set[str]) -> list[str]:
    """Nodes that were to be quarantined and were not, where they are more than the breaker bears: it does not matter
    whether it was the breaker that held them back, or a budget that is smaller. Those that people or other systems of
    the site reported wait for room: they do not show that the control plane errs.
    """
    snapshot, config = current.snapshot, current.config
    since = max(snapshot.ago(config.guards.breaker_window_seconds), snapshot.operator.breaker_reset_at)
    known = {subject for subject, incident in snapshot.incidents.items() if incident.opened_at <= since}
    held = [
        one.subject
        for one in held_back
        if not _is_reported(one)
        and (one.because is Because.BREAKER or (one.because in BUDGETS and Subject.of_node(one.subject) not in known))
    ]
    wanted = guards.failures(snapshot, guards.lately_quarantined(snapshot, config) | new | set(held))
    return held if len(wanted) > guards.breaker_limit(snapshot, config) else []


def _is_reported(decision: Decision) -> bool:
    """True if a person or another system of the site reported it."""
    finding = decision.finding
    return finding is not None and (finding.request is not None or finding.signal is Signal.SITE_FAULT)


def _leaves(snapshot: Snapshot, condemned: Entered, objection: guards.Objection) -> bool:
    """True if a gang leaves the node although a budget keeps it in service. The breaker, the mode and a rule that only
    observes doubt that the node is at fault; a budget does not. A dead node would have to be declared down for it.
    """
    row, finding = condemned
    return (
        objection.because in BUDGETS
        and row.action is Action.QUARANTINE
        and not _failed_validation(row)
        and not finding.dead
        and _seats_on(snapshot, finding.node)
    )


def _seats_on(snapshot: Snapshot, node: str) -> bool:
    """True if a gang has a seat there, and does not leave it already."""
    for job in gangs_on(snapshot, {node}):
        recovery = snapshot.recovery_of(job.key)
        swap = recovery.swap if recovery is not None else None
        leaves = swap is not None and node in (*swap.nodes, *swap.leaving)
        if node in seats_of(snapshot, job) and not leaves:
            return True
    return False


def _moved_all_the_same(decision: Decision, move: Move, objection: guards.Objection) -> Decision:
    if move.plan is None:
        return replace(decision, reason=f"{decision.reason}; {move.words}", stays=move.stays)
    summary = decision.finding.summary if decision.finding is not None else ""
    reason = f"{summary}; the node stays in service, because {objection.words}; {move.words}"
    evidence = decision.evidence.with_more(move.evidence)
    return replace(decision, action=Action.MOVE_GANG, reason=reason, plan=move.plan, evidence=evidence)


def _failed_validation(row: Row) -> bool:
    return row.when is Condition.IN_SERVICE_BEFORE_VALIDATION


def _gangs_move(snapshot: Snapshot, condemned: Entered) -> bool:
    """True if a gang with a seat there leaves it."""
    row, finding = condemned
    if _failed_validation(row):
        return False  # no gang runs on a node that is validated
    node = snapshot.nodes.get(finding.node)
    if node is None:
        return True
    if finding.signal is Signal.UNDRAINED and snapshot.custody(node.name).holder is Holder.OPERATOR:
        return False  # its gang stays, as when the operator took the node
    if finding.signal in STANDING and node.state is NodeState.FOREIGN_DRAIN and not _seats_on(snapshot, node.name):
        return False  # each gang that had a seat there leaves it already
    again = row.action is Action.DRAIN_AGAIN
    until_job_end = node.record.drain_kind is DrainKind.AT_JOB_END if again else row.action is Action.DRAIN
    return not until_job_end or _awaited(snapshot, node.name)


def _awaited(snapshot: Snapshot, node: str) -> bool:
    """True if a managed gang is on its way to the node: it would never start on a drained one."""
    return any(not job.running or node not in job.slurm.nodes for job in gangs_on(snapshot, {node}))


def _act(snapshot: Snapshot, condemned: Entered, move: Move | None) -> Decision:
    row, finding = condemned
    stays = "no managed gang is moved" if row.action is Action.DRAIN else "no managed gang runs there"
    move = move or Move(None, Because.RULE, stays)
    plan = move.plan
    if plan is None and row.action in (*TAKES_OUT, Action.DRAIN_AGAIN):
        plan = _plan_for_the_node(snapshot, condemned)
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action if plan else Action.NOTHING,
        because=move.because,
        reason=f"{finding.summary}: {row.why}; {move.words}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence.with_more(move.evidence),
        opens_incident=_opens_incident(snapshot, row, finding),
        plan=plan,
        request=finding.request if plan is not None else None,
        suspects=row.suspects,
        stays=move.stays,
    )


def _opens_incident(snapshot: Snapshot, row: Row, finding: Finding) -> bool:
    """A node that an administrator took is not at fault; a gang that hangs is, whichever node it waits for."""
    if finding.signal in HANGS:
        return True
    elsewhere = (Signal.SEAT_LOST, Signal.MOVE_ASKED, Signal.GANG_STOPPED)
    return finding.signal not in elsewhere and not _is_others(snapshot, row, finding)


def _is_others(snapshot: Snapshot, row: Row, finding: Finding) -> bool:
    """An administrator or an operator deals with the node, and goes on doing so."""
    node = snapshot.nodes.get(finding.node)
    if node is None or row.to is not None:
        return False
    return node.state is NodeState.FOREIGN_DRAIN or (row.action is Action.MOVE_GANG and node.state in HELD_BY_PEOPLE)


def _plan_for_the_node(snapshot: Snapshot, condemned: Entered) -> Plan:
    """Plan for a node that no gang leaves."""
    row, finding = condemned
    if _failed_validation(row):
        return repair_actions.take_back(snapshot, finding)
    if finding.signal is Signal.DRAINED_FOR_PROLOG:
        return plans.rename_plan(finding)
    return plans.quarantine_plan(finding, snapshot.nodes[finding.node])


def _breaker(current: Round, asked: list[str], new: set[str]) -> Decision:
    """`asked`: those that are one too many; `new`: those that are let through in this same round."""
    snapshot, config = current.snapshot, current.config
    row = row_without_node(Signal.TOO_MANY_AT_ONCE)
    lately = sorted(guards.lately_quarantined(snapshot, config) | new, key=spares.natural)
    limit = guards.breaker_limit(snapshot, config)
    names = ", ".join(asked[:8]) + (", …" if len(asked) > 8 else "")
    words = (
        f"{len(asked)} more to be quarantined ({names}) beside {len(lately)} within "
        f"{config.guards.breaker_window_seconds:g} s, where {limit} is the limit"
    )
    return Decision(
        row=row.number,
        subject="fleet",
        action=row.action,
        because=Because.RULE,
        reason=f"{words}: {row.why}",
        evidence=Evidence({"asked": list(asked), "lately": list(lately), "at": snapshot.now}),
    )


def _held_back(snapshot: Snapshot, condemned: Entered, objection: guards.Objection) -> Decision:
    held = guards.held_back(*condemned, objection)
    opens = not _is_reported(held) and _opens_incident(snapshot, *condemned)
    return replace(held, opens_incident=opens)
