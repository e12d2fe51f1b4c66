"""What checkpoints cost today, and what they would cost with the best interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_controlplane.figures.checkpoint_cost import Exposure, cost_of, interval_of, report
from understudy_controlplane.figures.checkpoint_interval import failure_rate
from understudy_controlplane.fleet.job import Attempt, MeasuredCheckpoint
from understudy_wire.facts import Tier

OF_GANG = Exposure(failure_rate(419, 2048 * 54), 2048)


def saved(at: float, blocked: float | None = 30, write: float | None = 40, launch: int = 0) -> MeasuredCheckpoint:
    return MeasuredCheckpoint(Attempt(0, launch), int(at), at, 16_384, blocked, write)


def test_todays_interval_is_that_of_checkpoints_of_one_attempt() -> None:
    assert interval_of([saved(7000), saved(5000), saved(3200, launch=1), saved(100, launch=1)]) == 2550
    assert interval_of([saved(7000), saved(5000, launch=1)]) is None


def test_what_is_lost_today_and_with_the_best_interval_in_gpu_hours() -> None:
    newest = [saved(9000 - 1800 * i) for i in range(5)]
    found = report(newest, cost_of(newest, OF_GANG))
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
    cost = cost_of(newest, OF_GANG)
    assert (cost.seconds, cost.exact) == (50, False)
    assert report([saved(1800, None, None)], cost_of([saved(1800, None, None)], OF_GANG)) is None
    assert report([], cost_of([], OF_GANG)) is None


def test_a_gang_that_saves_on_several_tiers_has_an_interval_of_each() -> None:
    near = [replace(saved(100.0 * n, blocked=5), tier=Tier.LOCAL) for n in range(5)]
    far = [replace(saved(1000.0 * n, blocked=30), tier=Tier.SHARED) for n in range(3)]
    assert cost_of(near, OF_GANG).tiers == ()
    cost = cost_of([*near, *far], OF_GANG)
    assert [(one.tier, one.cost) for one in cost.tiers] == [(Tier.LOCAL, 5), (Tier.SHARED, 30)]
    assert (cost.seconds, cost.best_seconds) == (5, cost.tiers[0].interval)
    copies = [
        replace(one, blocked_seconds=None, write_seconds=None, is_copy=True, size_bytes=4 * 10**15) for one in far
    ]
    copied = cost_of([*near, *copies], OF_GANG)
    assert copied.tiers[1].interval >= 4e15 / 2048 / 200e6, "one copy after another"
    assert copied.seconds == 5


def test_a_gang_that_also_saves_in_memory_has_an_interval_for_that_and_seldomer_one_for_files() -> None:
    files = [replace(saved(1000.0 * n, blocked=30), tier=Tier.SHARED) for n in range(5)]
    in_memory = [replace(saved(10.0 * n, blocked=0.2, write=None), tier=Tier.PEER) for n in range(2)]
    alone, both = cost_of(files, OF_GANG), cost_of([*files, *in_memory], OF_GANG)
    assert [(one.tier, one.cost) for one in both.tiers] == [(Tier.PEER, 0.2), (Tier.SHARED, 30)]
    assert alone.best_seconds is not None
    assert both.best_seconds is not None
    assert both.best_seconds == both.tiers[1].interval > 2 * alone.best_seconds, "memory answers most failures"
    assert (both.seconds, both.write_seconds) == (30, 40), "what due() orders is files"
    assert (alone.best_memory_seconds, both.best_memory_seconds) == (None, both.tiers[0].interval)
    only = cost_of(in_memory, OF_GANG)
    assert (only.seconds, only.best_seconds) == (None, None)
    assert only.best_memory_seconds is not None
    assert report(in_memory, cost_of(in_memory, OF_GANG)) is None
