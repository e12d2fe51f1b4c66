"""Accepted nodes, and how fast they are beside the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.figures.commissioning import Acceptance, acceptance, bins, progress
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import (
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    RepairAttempt,
    StepName,
    StepStatus,
    ValidationPlan,
)
from understudy_wire.stages import StageName, StageResult, StageStatus


def stage(value: float, name: StageName = StageName.CPU, status: StageStatus = StageStatus.PASSED) -> StageResult:
    return StageResult(name, status, value, 100.0, 1.0)


def attempt(status: RecoveryStatus = RecoveryStatus.SUCCEEDED, **values: Any) -> RepairAttempt:
    return RepairAttempt(1, "n1", RecoveryKind.VALIDATE, None, b.NOW - 100, status, **values)


FAILED = attempt(RecoveryStatus.FAILED, outcome="2 of 8 GPUs are there")


@pytest.mark.parametrize(
    ("state", "results", "last", "found", "reason"),
    [
        (NodeState.IN_SERVICE, [stage(150.0)], attempt(), Acceptance.ACCEPTED, ""),
        (NodeState.PROBATION, [], attempt(), Acceptance.ACCEPTED, ""),
        (NodeState.IN_SERVICE, [stage(150.0)], None, Acceptance.ACCEPTED, ""),
        (NodeState.IN_SERVICE, [], None, Acceptance.NOT_TESTED, "it has not been validated"),
        (NodeState.VALIDATING, [], attempt(), Acceptance.UNDER_WAY, "it is validating"),
        (NodeState.QUARANTINED, [], FAILED, Acceptance.FAILED, "2 of 8 GPUs are there"),
        (NodeState.QUARANTINED, [], attempt(), Acceptance.FAILED, "it passed, and is quarantined now"),
        (
            NodeState.IN_SERVICE,
            [],
            attempt(RecoveryStatus.FAILED, never_began=True, outcome="did not start"),
            Acceptance.NOT_TESTED,
            "did not start",
        ),
        (
            NodeState.IN_SERVICE,
            [stage(90.0, status=StageStatus.FAILED)],
            attempt(),
            Acceptance.FAILED,
            "cpu failed: 90 Gflop/s; at least 100",
        ),
    ],
)
def test_a_node_is_accepted_or_there_is_a_reason(
    state: NodeState, results: list[StageResult], last: RepairAttempt | None, found: Acceptance, reason: str
) -> None:
    assert acceptance(b.node("n1", state), results, last) == (found, reason)


def test_a_node_is_as_fast_as_in_its_slowest_stage_beside_the_others() -> None:
    measured = {
        "n1": [stage(100.0), stage(1000.0, StageName.MEMORY)],
        "n2": [stage(101.0), stage(960.0, StageName.MEMORY)],
        "n3": [stage(99.0), stage(1010.0, StageName.MEMORY), stage(1e9, StageName.CLOCK)],
        "n4": [stage(60.0)],
        "n5": [stage(0.001, StageName.CLOCK)],
    }
    assert bins(measured) == {"n1": "A", "n2": "B", "n3": "A", "n4": "C"}


def test_two_nodes_have_no_median() -> None:
    assert bins({"n1": [stage(100.0)], "n2": [stage(10.0)]}) == {}


STEPS = (StepName.RUN_VALIDATION, StepName.TEST_NETWORK, StepName.AWAIT_PEERS)
PLANNED, INTENDED, DONE = StepStatus.PLANNED, StepStatus.INTENDED, StepStatus.DONE


def burn_in(*so_far: StepStatus, hours: float = 48.0) -> Recovery:
    steps = tuple(
        RecoveryStep(i, name, status, int(status is not PLANNED), None if status is PLANNED else b.NOW - 5400)
        for i, (name, status) in enumerate(zip(STEPS, so_far, strict=True))
    )
    plan = ValidationPlan(steps=STEPS, nodes=("n1",), label="n1-1", hours=hours)
    return Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - 5400, steps)


@pytest.mark.parametrize(
    ("under_way", "words"),
    [
        (burn_in(PLANNED, PLANNED, PLANNED), "its burn-in begins"),
        (burn_in(INTENDED, PLANNED, PLANNED), "its burn-in has run for 1.5 h of 48"),
        (burn_in(INTENDED, PLANNED, PLANNED, hours=0.0), "its validation has run for 1.5 h"),
        (burn_in(DONE, PLANNED, PLANNED), "its burn-in is over, and its network is tested when its peers are there"),
        (burn_in(DONE, INTENDED, PLANNED), "its network is tested"),
        (burn_in(DONE, DONE, PLANNED), "its network was tested; others may need it as a peer"),
        (None, ""),
    ],
)
def test_the_report_names_how_far_a_burn_in_is(under_way: Recovery | None, words: str) -> None:
    assert progress(under_way, None, b.NOW) == words
    if words:
        assert acceptance(b.node("n1", NodeState.VALIDATING), [], None, words) == (Acceptance.UNDER_WAY, words)


def test_a_node_whose_burn_in_waits_is_under_way_and_one_on_hold_is_not() -> None:
    waiting = Request(1, "n1", Verb.BURN_IN, "a new rack", "carol", b.NOW)
    words = "its burn-in, asked for by carol, waits for the node to be idle and for its turn"
    assert progress(None, waiting, b.NOW) == words
    assert progress(None, replace(waiting, verb=Verb.HOLD), b.NOW) == ""
