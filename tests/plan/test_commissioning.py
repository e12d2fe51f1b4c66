"""Which nodes are accepted, and how fast they are beside the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_agent.stages import StageName, StageResult, StageStatus
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryKind, RecoveryStatus, RepairAttempt
from understudy_controlplane.plan.commissioning import Acceptance, acceptance, bins


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
