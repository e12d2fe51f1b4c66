"""The weight in Slurm of a node on probation: raised in its plan to return, put back when nothing else is under way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config
from understudy_controlplane.decide import plans
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.node import NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    QuarantinePlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RestoreWeightPlan,
    ReturnPlan,
    StepName,
)

LAST = 1000


def config(**validation: Any) -> Config:
    return b.config(validation={"enabled": True, "probation_weight": LAST, **validation})


def node(in_slurm: int = 1, state: NodeState = NodeState.VALIDATING, **record: Any) -> NodeView:
    known = NodeRecord("n5", state, since=b.NOW - 100, agent_seen_at=b.NOW, **record)
    return b.node("n5", slurm=replace(b.slurm_node("n5"), weight=in_slurm), record=known)


def returned(view: NodeView, *, on_probation: bool = True, **sections: Any) -> ReturnPlan:
    settings = b.config(validation={"enabled": True, "probation_weight": LAST}, **sections)
    return plans.return_plan(b.snapshot(view), view, settings, None, on_probation=on_probation)


def decided(view: NodeView, **values: Any) -> list[Decision]:
    found = decide(b.snapshot(view, **values), [], config())
    return [one for one in found if one.action is Action.RESTORE_WEIGHT]


def test_it_is_raised_before_the_node_is_given_up_to_jobs_and_what_it_was_is_in_the_plan() -> None:
    plan = returned(node(7))
    assert plan.steps == (StepName.RESUME_NODE, StepName.RAISE_WEIGHT, StepName.RELEASE_NODE)
    assert (plan.weight, plan.weight_before) == (LAST, 7)


def test_a_spare_an_operators_release_and_a_node_that_is_last_already_keep_their_weight() -> None:
    for plan in (
        returned(node(), spares={"count": 1}),
        returned(node(), on_probation=False),
        returned(node(LAST)),
        returned(node(LAST + 1)),
    ):
        assert StepName.RAISE_WEIGHT not in plan.steps
        assert plan.weight is None


@pytest.mark.parametrize(("now", "before"), [(LAST, 7), (50, 50), (7, 7)])
def test_the_raised_weight_of_the_last_time_is_not_its_own(now: int, before: int) -> None:
    assert plans.weight_of_its_own(node(now, weight=LAST, weight_before=7)) == before


WORKED_ON = {NodeState.PROBATION, NodeState.REPAIRING, NodeState.VALIDATING, NodeState.FOREIGN_DRAIN}


@pytest.mark.parametrize("state", list(NodeState))
def test_it_is_put_back_in_every_state_after_probation_except_under_repair_and_foreign_drain(state: NodeState) -> None:
    found = decided(node(LAST, state, weight=LAST, weight_before=7))
    assert [(one.row, one.plan and one.plan.kind) for one in found] == (
        [] if state in WORKED_ON else [(231, RecoveryKind.RESTORE_WEIGHT)]
    )
    for one in found:
        plan = b.plan_as(RestoreWeightPlan, one.plan)
        assert (plan.weight, plan.weight_before, one.to_state) == (LAST, 7, None)


def test_it_is_restored_once_nothing_else_is_under_way_there_and_not_where_it_was_not_raised() -> None:
    view = node(LAST, NodeState.QUARANTINED, weight=LAST, weight_before=7)
    drains = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n5",), drain_reason="understudy: x")
    assert decided(view, recoveries=(Recovery(1, drains, RecoveryStatus.RUNNING, b.NOW, ()),)) == []
    assert decided(node(LAST, NodeState.IN_SERVICE)) == []
