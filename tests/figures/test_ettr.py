"""ETTR by hand."""

from __future__ import annotations

import pytest

from understudy_controlplane.figures.ettr import ettr
from understudy_controlplane.fleet.history import AttemptProgress


def test_a_run_without_interruption_loses_only_its_start() -> None:
    result = ettr([AttemptProgress(running_at=0, first_step=0, first_step_at=11, last_step=89, last_step_at=100)])
    assert result is not None
    assert (result.steps_kept, result.steps_lost, result.step_seconds) == (90, 0, 1.0)
    assert result.ratio == pytest.approx(0.90)


def test_steps_done_twice_and_the_time_between_attempts_are_lost() -> None:
    result = ettr(
        [
            AttemptProgress(running_at=0, first_step=0, first_step_at=1, last_step=49, last_step_at=50),
            AttemptProgress(running_at=60, first_step=40, first_step_at=61, last_step=99, last_step_at=120),
        ]
    )
    assert result is not None
    assert (result.steps_kept, result.steps_lost) == (100, 10)
    assert result.ratio == pytest.approx(100 / 120)


def test_a_step_that_was_done_and_not_reported_before_the_fault_is_no_step_done_twice() -> None:
    """The gang went on from memory, one step after the last that its ranks had reported in time."""
    result = ettr(
        [
            AttemptProgress(running_at=0, first_step=0, first_step_at=1, last_step=47, last_step_at=48),
            AttemptProgress(running_at=60, first_step=50, first_step_at=61, last_step=79, last_step_at=90),
            AttemptProgress(running_at=95, first_step=77, first_step_at=96, last_step=99, last_step_at=118),
        ]
    )
    assert result is not None
    assert (result.steps_kept, result.steps_lost) == (100, 3)


def test_an_attempt_goes_on_in_the_count_that_the_last_one_was_in() -> None:
    """A second training in the same script, after 2,000 steps, was at its step 999, and goes back to its step 900."""
    first = AttemptProgress(0, first_step=0, first_step_at=1, last_step=2999, last_step_at=3000, count_from=2000)
    again = AttemptProgress(
        3000, first_step=900, first_step_at=3001, last_step=3899, last_step_at=4000, count_from=2000
    )
    result = ettr([first, again])
    assert result is not None
    assert (result.steps_kept, result.steps_lost, result.step_seconds) == (3900, 100, 1.0)


def test_straggling_counts_as_loss() -> None:
    result = ettr(
        [
            AttemptProgress(running_at=0, first_step=0, first_step_at=2, last_step=50, last_step_at=102),
            AttemptProgress(running_at=102, first_step=51, first_step_at=103, last_step=101, last_step_at=153),
        ]
    )
    assert result is not None
    assert result.step_seconds == 1.0
    assert result.ratio == pytest.approx(102 / 153)


@pytest.mark.parametrize("attempts", [[], [AttemptProgress(0, 0, 1, 0, 1)]])
def test_too_little_is_none(attempts: list[AttemptProgress]) -> None:
    assert ettr(attempts) is None
