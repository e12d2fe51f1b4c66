"""A fault that a person reports takes the path of a fault that was found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import request_preview
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Outcome, Prospect, Request, Verb
from understudy_controlplane.fleet.recovery import (
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
)
from understudy_controlplane.fleet.snapshot import Snapshot

SPARES = ("n6", "n7", "n8")


def reported(*names: str, **values: Any) -> Snapshot:
    requests = {name: Request(i, name, Verb.QUARANTINE, "it smells", "alice", b.NOW) for i, name in enumerate(names)}
    return b.snapshot(*values.pop("nodes", ()), spares=SPARES, requests=requests, **values)


def decided(snapshot: Snapshot, config: Config | None = None) -> list[Decision]:
    config = config or b.config()
    return decide(snapshot, detect(snapshot, config), config)


def answered(snapshot: Snapshot, config: Config | None = None) -> Prospect | None:
    return request_preview.of_node(snapshot, snapshot.operator.requests["n2"], config or b.config())


def test_its_gang_moves_to_a_spare_and_the_evidence_is_the_persons_word() -> None:
    (decision,) = decided(reported("n2", jobs=[b.job()]))
    plan = b.plan_as(PoolSwapPlan, decision.plan)
    assert (plan.nodes, plan.seats, plan.requested) == (("n2",), ("n1", "n3", "n4", "n6"), True)
    assert plan.steps[0] is StepName.DRAIN_NODES
    assert plan.drain_reason == "understudy: operator.quarantine: alice reports a fault: it smells"
    assert (decision.to_state, decision.opens_incident, decision.request) == (NodeState.QUARANTINED, True, 0)


def test_the_answer_says_where_the_gang_goes() -> None:
    answer = answered(reported("n2", jobs=[b.job()]))
    assert answer == Prospect(Outcome.WILL_ACT, "n2 becomes quarantined; job 7 moves to n6")


def test_without_a_gang_it_is_drained_and_a_spare_leaves_the_pool() -> None:
    (decision,) = decided(reported("n7"))
    assert b.plan_as(QuarantinePlan, decision.plan).steps == (StepName.DRAIN_NODES, StepName.TAKE_SPARES)


def test_the_budgets_hold_it_back_and_the_answer_names_them() -> None:
    """The request waits: no incident is opened, and the breaker stays closed."""
    out = [b.node(name, NodeState.QUARANTINED) for name in ("n3", "n4")]
    config = b.config(guards={"quarantined_nodes_min": 2, "quarantined_nodes_max": 2})
    snapshot = reported("n1", "n2", nodes=out)
    decisions = [one for one in decided(snapshot, config) if one.subject in snapshot.operator.requests]
    assert {one.because for one in decisions} == {Because.FLEET_BUDGET}
    assert not any(one.opens_incident or one.plan or one.request is not None for one in decisions)
    answer = answered(snapshot, config)
    assert answer is not None
    assert (answer.outcome, "2 nodes are quarantined already" in answer.why) == (Outcome.HELD_BY_GUARD, True)


def test_many_reports_at_once_open_no_breaker() -> None:
    names = [f"n{i}" for i in range(1, 6)]
    config = b.config(guards={"breaker_nodes_min": 3, "breaker_nodes_max": 3, "quarantined_share_max": 0.9})
    decisions = decided(reported(*names), config)
    assert Because.BREAKER in {one.because for one in decisions}
    assert Action.OPEN_BREAKER not in {one.action for one in decisions}


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE])
def test_neither_a_pause_nor_mode_approve_holds_it_back(mode: Mode) -> None:
    snapshot = reported("n2", jobs=[b.job()], paused="a person looks", mode=mode)
    (decision,) = decided(snapshot)
    assert decision.action is Action.QUARANTINE
    answer = answered(snapshot)
    assert answer is not None
    assert answer.outcome is Outcome.WILL_ACT


def test_a_node_that_does_not_answer_is_declared_down() -> None:
    mute = b.node("n2", slurmd_silent_since=b.NOW - 3)
    (decision,) = decided(reported("n2", jobs=[b.job()], nodes=[mute]))
    assert b.plan_as(PoolSwapPlan, decision.plan).dead_nodes == ("n2",)


def test_nothing_found_against_it_does_not_end_it_before_its_drain_not_even_after_a_second_fault() -> None:
    (first,) = decided(reported("n2", jobs=[b.job()]))
    assert first.plan is not None
    steps = tuple(RecoveryStep(i, name) for i, name in enumerate(first.plan.steps))
    running = Recovery(9, first.plan, RecoveryStatus.RUNNING, b.NOW - 1, steps)
    out = b.node("n2", NodeState.QUARANTINED)
    quiet = dataclasses.replace(reported(nodes=[out], jobs=[b.job()]), recoveries=(running,))
    assert decided(quiet) == []
    broken = b.node("n3", events=(b.xid_event("n3", 79),))
    (second,) = decided(dataclasses.replace(quiet, nodes={**quiet.nodes, "n3": broken}))
    plan = b.plan_as(PoolSwapPlan, second.plan)
    assert (set(plan.nodes), plan.supersedes, plan.requested) == ({"n2", "n3"}, 9, True)
