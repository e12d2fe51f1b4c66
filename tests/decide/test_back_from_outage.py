"""Nodes that Slurm keeps DOWN after an outage: their validation brings them back, where the site repairs by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.maintenance import Maintenance
from understudy_controlplane.fleet.node import NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus, RepairAttempt, Rung, ValidationPlan
from understudy_controlplane.fleet.snapshot import Snapshot

CONFIG = b.config(repair={"enabled": True}, validation={"enabled": True})
BOOTED, SILENT = "Node unexpectedly rebooted", "Not responding"


def down(name: str, reason: str = BOOTED, user: str = "slurm", **values: Any) -> NodeView:
    state = NodeState.FOREIGN_DRAIN if reason == BOOTED else NodeState.IN_SERVICE
    slurm = replace(b.slurm_node(name, "DOWN"), reason=reason, reason_user=user, **values.pop("slurm", {}))
    record = b.record(name, values.pop("state", state), since=b.NOW - 4000)
    return b.node(name, record=record, slurm=slurm, out_since=b.NOW - 4000, **values)


def judged(seen: Snapshot, config: Any = CONFIG) -> list[Decision]:
    return decide(seen, detect(seen, config), config)


def validated(*nodes: NodeView, config: Any = CONFIG, **values: Any) -> list[Decision]:
    return [one for one in judged(b.snapshot(*nodes, **values), config) if one.row == 203]


@pytest.mark.parametrize("reason", [BOOTED, SILENT])
def test_a_node_that_works_again_is_validated(reason: str) -> None:
    (decision,) = validated(down("n5", reason))
    assert (decision.action, decision.to_state, decision.origin) == (
        Action.VALIDATE,
        NodeState.VALIDATING,
        ValidationOrigin.OUTAGE,
    )
    assert b.plan_as(ValidationPlan, decision.plan).nodes == ("n5",)


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "replacing its fan", "user": "alice"},
        {"user": "alice"},
        {"heard_at": b.NOW - 300},
        {"slurmd_silent_since": b.NOW - 300},
        {"slurm": {"flags": frozenset({"NOT_RESPONDING"})}},
        {"slurm": {"flags": frozenset({"DRAIN"})}},
        {"slurm": {"flags": frozenset({"MAINT"})}},
    ],
)
def test_what_an_administrator_took_and_what_does_not_answer_is_left_alone(changes: dict[str, Any]) -> None:
    assert validated(down("n5", **changes)) == []


def test_the_second_time_within_a_day_a_person_has_to_look() -> None:
    before = RepairAttempt(1, "n5", RecoveryKind.VALIDATE, Rung.RESTART_APP, b.NOW - 9000, RecoveryStatus.SUCCEEDED)
    seen = b.snapshot(down("n5"), attempts=(before,))
    assert [one.row for one in judged(seen) if one.plan] == [93]


def test_where_the_site_does_not_let_it_repair_a_person_is_notified() -> None:
    """Also of a node that Slurm keeps DOWN for its silence."""
    seen = b.snapshot(down("n4"), down("n5", SILENT))
    (page,) = [one for one in judged(seen, b.config()) if one.row == 93]
    for name, reason in (("n4", "Node unexpectedly rebooted"), ("n5", "Not responding")):
        assert f"Slurm has taken {name} out of service ({reason})" in page.reason


def test_a_reading_of_slurm_from_before_its_return_is_no_outage() -> None:
    assert validated(down("n5", SILENT), drains_lifted={"n5": b.NOW}) == []


def test_a_node_under_maintenance_is_brought_back_by_that() -> None:
    under = Maintenance(1, ("n5",), ("n5",), "fans", "alice", b.NOW - 60, b.NOW + 3600, 1)
    assert validated(down("n5"), maintenances=(under,)) == []


def test_a_rack_comes_back_a_few_nodes_at_a_time() -> None:
    nodes = [down(f"n{i}") for i in range(1, 9)]
    decisions = validated(*nodes)
    begun = [one for one in decisions if one.plan is not None]
    waiting = [one for one in decisions if one.because is Because.REPAIR_BUDGET]
    assert 0 < len(begun) < 8
    assert len(begun) + len(waiting) == 8
    assert not [one for one in judged(b.snapshot(*nodes)) if one.row == 93], "they come back by themselves"
