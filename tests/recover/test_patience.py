"""How often a step that waits is looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from understudy_controlplane.recover.patience import rest_seconds

DAY_SECONDS = 86_400.0
TICK_SECONDS = 0.5


def looks(lasts_seconds: float, timeout_seconds: float, min_job_age_seconds: float = 0.0) -> list[float]:
    """When a step that waits is looked at, by a loop that rests for as long as it may."""
    at = [0.0]
    while at[-1] < lasts_seconds:
        at.append(at[-1] + max(TICK_SECONDS, rest_seconds(at[-1], timeout_seconds, min_job_age_seconds)))
    return at


def test_a_step_that_waits_for_a_day_looks_once_a_minute() -> None:
    at = looks(DAY_SECONDS, 2 * DAY_SECONDS)
    late = [one for one in at if one > 3600]
    assert {round(after - before, 6) for before, after in pairwise(late)} == {60.0}
    assert len(at) < 24 * 60 + 120


@pytest.mark.parametrize("lasts_seconds", [10.0, 45.0, 300.0, 1000.0])
def test_the_end_of_a_short_wait_is_seen_within_a_twentieth(lasts_seconds: float) -> None:
    assert looks(lasts_seconds, DAY_SECONDS)[-1] - lasts_seconds <= max(TICK_SECONDS, lasts_seconds / 20)


def test_a_step_fails_within_a_sixtieth_of_its_timeout() -> None:
    assert looks(120.0, 120.0)[-1] - 120 <= 2.0


def test_a_job_that_slurm_forgets_soon_is_looked_at_three_times_before() -> None:
    at = looks(DAY_SECONDS / 24, DAY_SECONDS, min_job_age_seconds=15)
    assert round(max(after - before for before, after in pairwise(at)), 6) == 5.0
