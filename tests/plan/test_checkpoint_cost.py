"""What checkpoints cost today, and what they would cost with the best interval."""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.job import Attempt, MeasuredCheckpoint
from understudy_controlplane.plan.checkpoint_cost import cost_of, interval_of, report
from understudy_controlplane.plan.checkpoint_interval import failure_rate

LLAMA_3 = failure_rate(419, 2048 * 54)


def saved(at: float, blocked: float | None = 30, write: float | None = 40, launch: int = 0) -> MeasuredCheckpoint:
    return MeasuredCheckpoint(Attempt(0, launch), int(at), at, 16_384, blocked, write)


def test_todays_interval_is_that_of_checkpoints_of_one_attempt() -> None:
    assert interval_of([saved(7000), saved(5000), saved(3200, launch=1), saved(100, launch=1)]) == 2550
    assert interval_of([saved(7000), saved(5000, launch=1)]) is None


def test_what_is_lost_today_and_with_the_best_interval_in_gpu_hours() -> None:
    newest = [saved(9000 - 1800 * i) for i in range(5)]
    found = report(newest, cost_of(newest, LLAMA_3, 2048))
    assert found is not None
    assert (found.cost, found.write, found.is_measured, found.today, found.gpus) == (30, 40, True, 1800, 16_384)
    assert found.best == pytest.approx(798, abs=1)
    assert found.daly == pytest.approx(found.best, rel=0.003)
    assert found.lost_today is not None
    assert found.lost_today / 16_384 == pytest.approx(30 / 1800 + 900 / 11_135, rel=0.1), (
        "waiting, and half an interval"
    )
    assert found.lost_best < found.lost_today


def test_where_it_is_not_known_how_long_training_was_held_up_writing_counts_and_nothing_measured_is_no_report() -> None:
    newest = [saved(1800, None, 40), saved(0, None, 60)]
    cost = cost_of(newest, LLAMA_3, 2048)
    assert (cost.seconds, cost.exact) == (50, False)
    assert report([saved(1800, None, None)], cost_of([saved(1800, None, None)], LLAMA_3, 2048)) is None
    assert report([], cost_of([], LLAMA_3, 2048)) is None
