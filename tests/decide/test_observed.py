"""The record of rules that only observed."""

from __future__ import annotations

import pytest

from understudy_controlplane.decide.observed import RuleRecord, records
from understudy_controlplane.fleet.decision import HeldDecision
from understudy_controlplane.fleet.durations import DAY_SECONDS

DAY = DAY_SECONDS


def held(number: int, day: float, subject: str = "n1", approved: bool | None = None) -> HeldDecision:
    return HeldDecision(number, day * DAY, subject, "xid.79", approved)


def record(
    *decisions: HeldDecision, verdicts: dict[int, bool] | None = None, drained: dict[str, list[float]] | None = None
) -> RuleRecord:
    (found,) = records(decisions, verdicts or {}, drained or {})
    return found


def test_decisions_about_one_fault_are_one_case() -> None:
    assert record(held(1, 0), held(2, 0.5), held(3, 1.2), held(4, 3), held(5, 3, "n2")).cases == 3


@pytest.mark.parametrize(
    ("decision", "verdicts", "drained", "answer"),
    [
        (held(1, 1), {}, {}, (0, 0)),
        (held(1, 1), {1: True}, {}, (1, 0)),
        (held(1, 1), {1: False}, {"n1": [1.1 * DAY]}, (0, 1)),
        (held(1, 1, approved=True), {}, {}, (1, 0)),
        (held(1, 1, approved=False), {}, {}, (0, 1)),
        (held(1, 1, approved=True), {1: False}, {}, (0, 1)),
        (held(1, 1), {}, {"n1": [1.9 * DAY]}, (1, 0)),
        (held(1, 1), {}, {"n1": [2.1 * DAY, 0.9 * DAY], "n2": [1.1 * DAY]}, (0, 0)),
    ],
)
def test_who_agreed(
    decision: HeldDecision, verdicts: dict[int, bool], drained: dict[str, list[float]], answer: tuple[int, int]
) -> None:
    found = record(decision, verdicts=verdicts, drained=drained)
    assert (found.agreed, found.disagreed) == answer


def test_a_rule_is_ready_after_enough_answers_that_agree() -> None:
    cases = [held(number, 0, f"n{number}") for number in range(40)]
    assert record(*cases).precision is None
    assert not record(*cases, verdicts={0: True, 1: True}).ready
    assert record(*cases, verdicts={0: True, 1: True, 2: True}).ready
    wrong_once = record(*cases, verdicts={number: number > 0 for number in range(10)})
    assert (wrong_once.precision, wrong_once.ready) == (0.9, False)
