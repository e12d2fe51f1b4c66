"""Patterns of healthy gangs that name no rank, with and without work that varies, at every half window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import slow_ranks
from understudy_controlplane.fleet.steps import StepTable

Floats = npt.NDArray[np.float64]

POLICY = Straggler()
REPLICAS, STEPS, STEPS_KEPT = 16, 260, 128
STAGE_0, RANKS = slice(0, REPLICAS), 2 * REPLICAS


def healthy(work_varies: float, seed: int) -> Floats:
    """Seconds of two stages of 16 ranks each."""
    rng = np.random.default_rng(seed)
    work = np.exp(rng.normal(0, work_varies, (REPLICAS, STEPS)))
    return np.concatenate([2 * work, 2.5 * work + 1]) * np.exp(rng.normal(0, 0.008, (RANKS, STEPS)))


def seen(times: Floats, end: int) -> StepTable:
    begin = max(0, end - STEPS_KEPT)
    roles = ["stage0"] * REPLICAS + ["stage1"] * REPLICAS
    table = b.step_table(times[:, begin:end].tolist(), roles=roles)
    last = np.full(RANKS, end - 1)
    return replace(table, first_step=begin, last_step=last, replicas=np.tile(np.arange(REPLICAS), 2))


def ever_named(times: Floats) -> set[int]:
    return {slow.rank for end in range(20, STEPS + 1, 10) for slow in slow_ranks(seen(times, end), POLICY)}


def warm_room(times: Floats) -> None:
    """A stage stands in a room that becomes warmer."""
    times[STAGE_0] *= np.linspace(1, 1.1, STEPS)


def differences_for_ever(times: Floats) -> None:
    times *= np.random.default_rng(2).permutation(np.linspace(0.985, 1.015, RANKS))[:, None]


def one_differs_for_ever(times: Floats) -> None:
    times[9] *= 1.03


def cold_start(times: Floats) -> None:
    """Caches and compilation: a few steps, not equally many on each rank."""
    for rank, steps in enumerate(np.random.default_rng(3).integers(2, 10, RANKS)):
        times[rank, :steps] *= 3


def checkpoints_on_some(times: Floats) -> None:
    times[::4, 99::100] *= 6


def evaluation_on_rank_0(times: Floats) -> None:
    times[0, 9::10] *= 4


def hiccups(times: Floats) -> None:
    times[np.random.default_rng(4).random(times.shape) < 0.02] *= 1.5


def steps_become_longer(times: Floats) -> None:
    """Longer sequences for everyone, as a curriculum does."""
    times[:, 120:] *= 1.4


PATTERNS = [
    warm_room,
    differences_for_ever,
    one_differs_for_ever,
    cold_start,
    checkpoints_on_some,
    evaluation_on_rank_0,
    hiccups,
    steps_become_longer,
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("work_varies", [0.0, 0.12])
def test_a_pattern_of_healthy_gangs_names_no_rank(pattern: Callable[[Floats], None], work_varies: float) -> None:
    times = healthy(work_varies, seed=1)
    pattern(times)
    assert ever_named(times) == set()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("work_varies", [0.0, 0.12])
def test_beside_it_a_rank_that_begins_to_be_slow_is_still_the_only_one_named(
    pattern: Callable[[Floats], None], work_varies: float
) -> None:
    times = healthy(work_varies, seed=1)
    times[20] *= 0.985  # it was never the slowest
    times[20, 130:] *= 1.12
    pattern(times)
    assert ever_named(times) == {20}


@pytest.mark.parametrize("work_varies", [0.0, 0.12])
@pytest.mark.parametrize("slower", [1.2, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("every", [2, 3])
def test_a_rank_that_is_slow_in_every_second_or_third_step_is_the_only_one_named(
    every: int, slower: float, work_varies: float
) -> None:
    times = healthy(work_varies, seed=1)
    times[5, 130::every] *= slower
    assert ever_named(times) == {5}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("work_varies", [0.0, 0.12])
def test_beside_a_pattern_it_is_the_only_one_named_as_well(
    pattern: Callable[[Floats], None], work_varies: float
) -> None:
    times = healthy(work_varies, seed=1)
    times[20, 130::2] *= 1.5
    pattern(times)
    assert ever_named(times) == {20}


@pytest.mark.parametrize("slower", [1.3, 2.0])
def test_a_rank_that_is_slow_in_half_of_its_steps_by_chance_is_the_only_one_named(slower: float) -> None:
    times = healthy(0.0, seed=1)
    times[5, 130:][np.random.default_rng(5).random(STEPS - 130) < 0.5] *= slower
    assert ever_named(times) == {5}
