"""Ages by a clock that is set."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.clock_sets import ClockSets

HOUR = 3600.0
MONOTONIC = 50_000.0
WALL = 1_700_000_000.0


@pytest.mark.parametrize("forward", [10.0, HOUR, 8 * 24 * HOUR])
@pytest.mark.parametrize("set_ago", [1.0, 0.5 * HOUR, 1.5 * HOUR])
@pytest.mark.parametrize("age", [0.5, 0.4 * HOUR, 0.9 * HOUR, 1.1 * HOUR, 2 * HOUR])
def test_a_clock_that_was_set_forward_changes_no_age(forward: float, set_ago: float, age: float) -> None:
    sets = ClockSets().with_set(MONOTONIC - set_ago, forward, 7 * 24 * HOUR)
    recorded = WALL - age - (forward if age > set_ago else 0.0)
    assert (recorded < sets.ago(HOUR, WALL, MONOTONIC)) == (age > HOUR)


def test_one_that_was_set_back_makes_nothing_older() -> None:
    sets = ClockSets().with_set(MONOTONIC - 60, -HOUR, HOUR)
    assert sets.ago(HOUR, WALL, MONOTONIC) == WALL - HOUR
    put_right = sets.with_set(MONOTONIC - 30, HOUR, HOUR)
    recorded_meanwhile = WALL - 45 - HOUR
    assert put_right.ago(HOUR, WALL, MONOTONIC) <= recorded_meanwhile


def test_what_was_long_ago_is_forgotten() -> None:
    sets = ClockSets().with_set(MONOTONIC - 2 * HOUR, 5.0, HOUR).with_set(MONOTONIC, 7.0, HOUR)
    assert [by for _, by in sets.sets] == [7.0]
