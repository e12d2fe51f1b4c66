"""What the statistics of stragglers promise where steps differ by their work, as sequences of other lengths do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests import builders as b
from tests.resampled_steps import JUDGED, ResampledGangs, false_alarms, steps_to_detection
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import judge, slow_ranks
from understudy_controlplane.fleet.steps import StepTable

Floats = npt.NDArray[np.float64]
POLICY = Straggler()


@pytest.mark.parametrize("longest", [False, True])
@pytest.mark.parametrize(("slower", "within", "at_least"), [(0.05, 120, 19), (0.10, 40, 20), (0.20, 20, 20)])
def test_a_slow_rank_is_found_beside_others_of_its_replica(
    slower: float, within: int, at_least: int, longest: bool
) -> None:
    """`longest`: also where its replica has the longest sequences."""
    gangs = ResampledGangs(20, JUDGED, seed=1)
    assert gangs.ranks == 20 * 64
    taken = steps_to_detection(gangs, slower, longest=longest)
    assert len([steps for steps in taken if steps <= within]) >= at_least, taken


@pytest.mark.parametrize(("slower", "every", "within"), [(0.2, 2, 60), (0.5, 2, 40), (0.2, 3, 80), (1.0, 3, 40)])
def test_a_rank_that_is_slow_in_some_steps_only_is_found_as_well(slower: float, every: int, within: int) -> None:
    taken = steps_to_detection(ResampledGangs(5, JUDGED, seed=1), slower, every=every)
    assert len(taken) == 5
    assert max(taken) <= within


def test_without_replicas_it_takes_a_fifth_as_before() -> None:
    assert steps_to_detection(ResampledGangs(5, JUDGED, seed=1), 0.05, known=False) == []
    assert len(steps_to_detection(ResampledGangs(5, JUDGED, seed=1), 0.3, known=False)) == 5


def test_healthy_steps_name_no_rank() -> None:
    """A small part of what the bench looks at."""
    assert false_alarms(ResampledGangs(20, JUDGED, seed=3), rounds=10)[0] == 0


WORK_VARIES = 0.15
STAGES, REPLICAS = 2, 16
RANKS = STAGES * REPLICAS


def work_of_steps(steps: int = 120, seed: int = 1) -> Floats:
    """Work by replica and step."""
    return np.exp(np.random.default_rng(seed).normal(0, WORK_VARIES, (REPLICAS, steps)))


def gang(work: Floats, seed: int = 1, noise: float = 0.005) -> StepTable:
    """Ranks 0 to 15 are stage 0, the others stage 1, which takes longer by what does not depend on the work."""
    rng = np.random.default_rng(seed)
    times = np.concatenate([2 * work, 2.5 * work + 1.5]) * np.exp(rng.normal(0, noise, (RANKS, work.shape[1])))
    table = b.step_table(times.tolist(), roles=["stage0"] * REPLICAS + ["stage1"] * REPLICAS)
    return replace(table, replicas=np.tile(np.arange(REPLICAS), STAGES))


def slow(table: StepTable, ranks: list[int], by: float = 0.06) -> StepTable:
    table.self_seconds[ranks, 40:] *= 1 + by
    return table


def named(table: StepTable) -> list[int]:
    return [one.rank for one in slow_ranks(table, POLICY)]


def test_replicas_that_are_not_known_are_found_by_correlation() -> None:
    assert named(replace(slow(gang(work_of_steps()), [20]), replicas=np.empty(0, np.int64))) == [20]


def test_work_that_the_training_reports_is_taken_out_without_replicas() -> None:
    work = work_of_steps()
    table = slow(gang(work), [20])
    amount = np.tile(1000 * work, (STAGES, 1)).astype(np.float32)
    alone = replace(table, replicas=np.full(RANKS, -1), work=amount)
    assert named(alone) == [20]
    assert named(replace(alone, work=None)) == []


def test_a_replica_with_more_work_for_ever_names_no_rank_of_its() -> None:
    work = work_of_steps()
    work[3] *= 1.4
    found = judge(gang(work), POLICY)
    assert {one.rank for one in found} == {3, 3 + REPLICAS}
    assert all("more work" in one.doubt for one in found)


def test_a_slow_node_that_has_the_whole_replica_is_not_excused_by_it() -> None:
    table = replace(gang(work_of_steps()), nodes=tuple(f"n{rank % REPLICAS}" for rank in range(RANKS)))
    table.self_seconds[[3, 3 + REPLICAS], 40:] *= 1.4
    assert named(table) == [3, 3 + REPLICAS]


def test_ranks_on_one_node_that_become_slow_together_are_no_replica() -> None:
    """Every second step only, which correlates as work does."""
    table = gang(work_of_steps(), noise=0.02)
    table = replace(table, replicas=np.empty(0, np.int64), nodes=tuple(f"n{rank % REPLICAS}" for rank in range(RANKS)))
    table.self_seconds[[3, 3 + REPLICAS], 40::2] *= 3
    assert all("more work" not in one.doubt for one in judge(table, POLICY))


def test_a_rank_that_was_quicker_than_its_peers_is_named_by_what_it_lost() -> None:
    table = gang(work_of_steps())
    table.self_seconds[5] *= 0.975
    assert named(slow(table, [5], by=0.055)) == [5]


def test_a_slow_rank_is_found_through_gaps_in_what_is_known() -> None:
    table = slow(gang(work_of_steps()), [20], by=0.1)
    table.self_seconds[np.random.default_rng(3).random(table.self_seconds.shape) < 0.2] = np.nan
    assert named(table) == [20]


def test_several_ranks_of_one_replica_hide_no_other_and_are_all_found() -> None:
    """Three stages: the third shows which of the others is slow."""
    work = work_of_steps()
    rng = np.random.default_rng(4)
    times = np.concatenate([work, 1.5 * work, work + 1]) * np.exp(rng.normal(0, 0.005, (3 * REPLICAS, 120)))
    table = b.step_table(times.tolist(), roles=[f"stage{rank // REPLICAS}" for rank in range(3 * REPLICAS)])
    table = replace(table, replicas=np.tile(np.arange(REPLICAS), 3))
    assert named(slow(table, [2, 20], by=0.08)) == [2, 20]
