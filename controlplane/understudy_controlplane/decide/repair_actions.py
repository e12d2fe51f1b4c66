"""What is done with a node on its way back to service: the guards are asked, and the action is planned. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.repair_cycle import NOT_BEGUN, attempts_by_node
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, RepairDetail, RequestDetail, Signal
from understudy_controlplane.fleet.node import FROM_SERVICE, NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, Plan, Recovery, RepairPlan, Rung
from understudy_controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Entered:
    """A row of the table that was entered with a finding."""

    snapshot: Snapshot
    config: Config
    row: Row
    finding: Finding

    @property
    def node(self) -> NodeView:
        return self.snapshot.nodes[self.finding.node]

    @property
    def under_way(self) -> Recovery | None:
        return self.snapshot.recovery_on(self.node.name)

    @property
    def label(self) -> str:
        return f"{self.node.name}-{int(self.snapshot.now)}"


def carry_out(
    snapshot: Snapshot, row: Row, finding: Finding, config: Config, begun: Mapping[str, ValidationOrigin | None]
) -> Decision:
    """`begun`: nodes whose repair or validation began in this same round; None: a repair."""
    probed = ValidationOrigin.SUSPECT_PROBED
    probe = finding.signal is Signal.PROBE_DUE
    already = [name for name, origin in begun.items() if (origin is probed if probe else origin not in FROM_SERVICE)]
    requested = [name for name, origin in begun.items() if origin in FROM_SERVICE - {probed}]
    objection = _object(snapshot, row, finding, config, requested if finding.signal is Signal.TEST_ASKED else already)
    if objection is not None:
        return guards.held_back(row, finding, objection)
    node = snapshot.nodes[finding.node]
    plan = PLANNED_BY[row.action](Entered(snapshot, config, row, finding))
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


def _object(
    snapshot: Snapshot, row: Row, finding: Finding, config: Config, already: Collection[str]
) -> guards.Objection | None:
    if row.action is Action.LET_GO and finding.signal in (Signal.DRAIN_LIFTED, Signal.DRAINED_BY_OTHERS):
        return None  # an administrator's change ends the control plane's claim at once, before all guards
    if finding.signal is Signal.TEST_ASKED:
        request = snapshot.requests.get(finding.node)
        if request is not None and request.by == BY_CONTROL_PLANE:
            objection = guards.object_to_any(snapshot) or guards.object_while_open(snapshot)
        else:
            objection = guards.object_to_operator(snapshot)
        return (
            objection
            or guards.object_to_test(snapshot, finding.node, config)
            or guards.object_to_requested_test(snapshot, config, already)
        )
    if finding.request is not None:
        return guards.object_to_operator(snapshot)
    if row.action in (Action.REPAIR, Action.VALIDATE):
        tried = attempts_by_node(snapshot).get(finding.node, [])
        ask = guards.object_to_probe if finding.signal is Signal.PROBE_DUE else guards.object_to_repair
        return ask(snapshot, config, finding, tried, already)
    if row.action is Action.RETURN or finding.signal in NOT_BEGUN.values():
        return guards.object_to_any(snapshot) or guards.object_while_open(snapshot)
    return guards.object_to_any(snapshot)


def take_back(snapshot: Snapshot, finding: Finding) -> Plan:
    node = snapshot.nodes[finding.node]
    return plans.take_back_plan(node, finding, snapshot.recovery_on(node.name))


def _repair(entered: Entered) -> Plan:
    due = entered.finding.detail
    assert isinstance(due, RepairDetail)
    return plans.repair_plan(entered.node, due, entered.label, entered.snapshot.incident_of(entered.node.name))


def _validate(entered: Entered) -> Plan:
    rung = Rung.RESTART_APP if entered.finding.signal is Signal.VALIDATION_DUE else None
    asked = entered.finding.detail
    burn_in = isinstance(asked, RequestDetail) and asked.verb is Verb.BURN_IN
    hours = entered.config.validation.burn_in_hours if burn_in else 0.0
    return plans.validation_plan(entered.node, rung, entered.label, hours)


def _ask_person(entered: Entered) -> Plan:
    return plans.manual_repair_plan(entered.node, entered.finding, entered.label)


def _take_back(entered: Entered) -> Plan:
    return take_back(entered.snapshot, entered.finding)


def _hold(entered: Entered) -> Plan:
    return plans.hold_plan(entered.node, entered.finding, entered.under_way)


def _restore_weight(entered: Entered) -> Plan:
    return plans.restore_weight_plan(entered.node)


def _return(entered: Entered) -> Plan:
    on_probation = entered.row.to is NodeState.PROBATION
    return plans.return_plan(
        entered.snapshot, entered.node, entered.config, entered.under_way, on_probation=on_probation
    )


def _let_go(entered: Entered) -> Plan | None:
    held = f"{NODE_HOLD_PREFIX}{entered.node.name}" in entered.snapshot.reservations
    return plans.let_go_plan(entered.node, entered.under_way) if held or entered.under_way else None


PLANNED_BY: Mapping[Action, Callable[[Entered], Plan | None]] = {
    Action.REPAIR: _repair,
    Action.VALIDATE: _validate,
    Action.ASK_PERSON: _ask_person,
    Action.TAKE_BACK: _take_back,
    Action.HOLD: _hold,
    Action.RESTORE_WEIGHT: _restore_weight,
    Action.RETURN: _return,
    Action.LET_GO: _let_go,
}
"""The function that plans each action on one node. Gangs and condemned nodes: `condemnation`."""
