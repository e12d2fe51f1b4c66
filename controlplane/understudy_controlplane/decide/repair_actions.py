"""What is done with a node on its way back to service: the guards are asked, and the action is planned. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.peers import network_is_tested, peers_of
from understudy_controlplane.decide.repair_cycle import NOT_BEGUN, attempts_by_node, replacements_of_day
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, RepairDetail, RequestDetail, Signal
from understudy_controlplane.fleet.node import FROM_SERVICE, NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, Plan, RepairPlan, Rung
from understudy_controlplane.fleet.snapshot import Snapshot

BEGUN = (Action.REPAIR, Action.VALIDATE)


def carry_out(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    """One node after the other: those whose repair or validation begins count for the next."""
    left_out = [one for one in current.left_out if one.row.action in BEGUN]
    begun: dict[str, ValidationOrigin | None] = {one.finding.node: one.row.origin for one in left_out}  # None: a repair
    replaced = 0
    decisions: list[Decision] = []
    for one in entered:
        decision = _decide(current, one, begun)
        if _replaces(one.finding) and decision.action is one.row.action:
            decision = _within_the_day(current, one, decision, replaced)
            replaced += decision.action is one.row.action
        decisions.append(decision)
        if decision.action in BEGUN:
            begun[one.finding.node] = one.row.origin
    return decisions


def _decide(current: Round, entered: Entered, begun: Mapping[str, ValidationOrigin | None]) -> Decision:
    snapshot, config, (row, finding) = current.snapshot, current.config, entered
    probed = ValidationOrigin.SUSPECT_PROBED
    probe = finding.signal is Signal.PROBE_DUE
    already = [name for name, origin in begun.items() if (origin is probed if probe else origin not in FROM_SERVICE)]
    requested = [name for name, origin in begun.items() if origin in FROM_SERVICE - {probed}]
    objection = object_to(snapshot, entered, config, requested if finding.signal is Signal.TEST_ASKED else already)
    if objection is not None:
        return guards.held_back(row, finding, objection)
    node = snapshot.nodes[finding.node]
    # A person's change ends the control plane's claim in mode observe as well, but nothing is planned that would be
    # carried out later: what is left of a reservation is found when the mode is act.
    plan = None if guards.object_to_mode(snapshot, [finding.node]) else _plan(snapshot, config, entered)
    by_person = finding.request is not None or finding.signal is Signal.RETURN_CANCELLED
    if plan is not None and (by_person or _is_a_persons_doing(row, finding)):
        plan = msgspec.structs.replace(plan, requested=True)
    return Decision(
        row=row.number,
        subject=finding.node,
        action=row.action,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        opens_incident=row.action is Action.TAKE_BACK,
        plan=plan,
        clears=row.action is Action.VALIDATE,
        past_boot_id=node.boot_id if isinstance(plan, RepairPlan) and plan.rung is Rung.REBOOT else "",
        request=finding.request,
        origin=row.origin,
    )


def object_to(
    snapshot: Snapshot, entered: Entered, config: Config, already: Collection[str]
) -> guards.Objection | None:
    """`already`: nodes whose repair or validation of this kind began in this same round."""
    row, finding = entered
    unsure = guards.object_while_gpus_are_unsure(snapshot, finding.node) if row.action is Action.VALIDATE else None
    if unsure or _is_a_persons_doing(row, finding):
        return unsure  # an administrator's change ends the control plane's claim at once, before all guards
    if finding.signal is Signal.TEST_ASKED:
        request = snapshot.operator.requests.get(finding.node)
        if request is not None and request.by == BY_CONTROL_PLANE:
            objection = guards.object_to_any(snapshot, finding) or guards.object_while_open(snapshot)
        else:
            objection = guards.object_to_operator(snapshot, finding)
        return (
            objection
            or guards.object_to_test(snapshot, finding.node, config)
            or _object_to_requested_test(snapshot, finding, config, already)
        )
    if finding.request is not None or finding.signal is Signal.RETURN_CANCELLED:
        objection = guards.object_to_operator(snapshot, finding)
        if objection is None and row.action is Action.VALIDATE:
            objection = guards.object_to_released(snapshot, finding.node, config)
        return objection
    if row.action in BEGUN or _replaces(finding):
        tried = attempts_by_node(snapshot).get(finding.node, [])
        ask = guards.object_to_probe if finding.signal is Signal.PROBE_DUE else guards.object_to_repair
        return guards.object_while_unjudged(snapshot, finding.node) or ask(snapshot, config, finding, tried, already)
    if row.action is Action.RETURN or finding.signal in NOT_BEGUN.values():
        general = guards.object_to_any(snapshot, finding) or guards.object_while_open(snapshot)
        return general or guards.object_while_unjudged(snapshot, finding.node)
    return guards.object_to_any(snapshot, finding)


def _within_the_day(current: Round, entered: Entered, decision: Decision, replaced: int) -> Decision:
    """`replaced`: nodes for whose replacement the provider is asked in this same round."""
    limit = current.config.provider.replacements_per_day_max
    if replacements_of_day(current.snapshot) + replaced < limit:
        return decision
    words = f"{counted(limit, 'replacement is', 'replacements are')} asked for within a day, which is the limit"
    return guards.held_back(*entered, guards.Objection(Because.REPAIR_BUDGET, words))


def _replaces(finding: Finding) -> bool:
    return isinstance(finding.detail, RepairDetail) and finding.detail.rung is Rung.REPLACE


def _object_to_requested_test(
    snapshot: Snapshot, finding: Finding, config: Config, already: Collection[str]
) -> guards.Objection | None:
    def is_burn_in(name: str) -> bool:
        request = snapshot.operator.requests.get(name)
        return request is not None and request.verb is Verb.BURN_IN

    burn_in = is_burn_in(finding.node)
    alike = [name for name in already if is_burn_in(name) is burn_in]
    return guards.object_to_requested_test(snapshot, config, alike, burn_in=burn_in)


def _is_a_persons_doing(row: Row, finding: Finding) -> bool:
    return row.action is Action.LET_GO and finding.signal in (Signal.DRAIN_LIFTED, Signal.DRAINED_BY_OTHERS)


def take_back(snapshot: Snapshot, finding: Finding) -> Plan:
    node = snapshot.nodes[finding.node]
    return plans.take_back_plan(node, finding, snapshot.recovery_on(node.name))


def _plan(  # noqa: PLR0911 - a list: a return for each action
    snapshot: Snapshot, config: Config, entered: Entered
) -> Plan | None:
    row, finding = entered
    node, under_way = snapshot.nodes[finding.node], snapshot.recovery_on(finding.node)
    label = f"{node.name}-{int(snapshot.now)}"
    match row.action:
        case Action.REPAIR:
            assert isinstance(finding.detail, RepairDetail)
            return plans.repair_plan(node, finding.detail, label, snapshot.incident_of(node.name))
        case Action.VALIDATE:
            return _validate(snapshot, node, finding, label, config)
        case Action.ASK_PERSON:
            return plans.manual_repair_plan(node, finding, label)
        case Action.TAKE_BACK:
            return take_back(snapshot, finding)
        case Action.HOLD:
            return plans.hold_plan(node, finding, under_way)
        case Action.RESTORE_WEIGHT:
            return plans.restore_weight_plan(node, snapshot.history.weights_left.get(node.name))
        case Action.RETURN:
            on_probation = (row.to or node.state) is NodeState.PROBATION
            return plans.return_plan(snapshot, node, config, under_way, on_probation=on_probation)
        case Action.LET_GO:
            held = f"{NODE_HOLD_PREFIX}{node.name}" in snapshot.slurm.reservations
            return plans.let_go_plan(node, under_way) if held or under_way else None
    raise AssertionError(f"row {row.number}: {row.action} is no action on one node")


def _validate(snapshot: Snapshot, node: NodeView, finding: Finding, label: str, config: Config) -> Plan:
    rung = Rung.RESTART_APP if finding.signal in (Signal.VALIDATION_DUE, Signal.BACK_FROM_OUTAGE) else None
    burn_in = isinstance(finding.detail, RequestDetail) and finding.detail.verb is Verb.BURN_IN
    hours = config.validation.burn_in_hours if burn_in else 0.0
    if hours > 0:
        return plans.validation_plan(node, rung, label, hours, meets=network_is_tested(config, hours))
    return plans.validation_plan(node, rung, label, hours, peers_of(snapshot, node, config))
