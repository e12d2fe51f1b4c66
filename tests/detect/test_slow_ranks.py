"""What the statistics of stragglers promise: on jobs of unequal stages, on noise, on gaps, and how quickly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from tests.generated_steps import GeneratedGang, false_alarms, steps_to_detection
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import SlowRank, judge, judge_all, judged_once, slow_ranks
from understudy_controlplane.fleet.steps import StepTable

POLICY = Straggler()


def gang(work: list[float], roles: list[str], steps: int = 128, noise: float = 0.02, seed: int = 1) -> StepTable:
    """Ranks that each have so much work, which varies by `noise` from step to step."""
    rng = np.random.default_rng(seed)
    times = np.array(work)[:, None] * np.exp(rng.normal(0, noise, (len(work), steps)))
    return b.step_table(times.tolist(), nodes=[f"n{i}" for i in range(len(work))], roles=roles)


STAGES = {
    "four stages of two, the last one heavier": ([1, 1, 1, 1, 1, 1, 1.3, 1.3], "00112233"),
    "two stages of four, the last one heavier": ([1, 1, 1, 1, 1.25, 1.25, 1.25, 1.25], "00001111"),
    "a stage of two and stages of three": ([0.8, 0.8, 1, 1, 1, 1.4, 1.4, 1.4], "00111222"),
    "eight stages of one, first and last differ": ([0.9, 1, 1, 1, 1, 1, 1, 1.35], "01234567"),
}


@pytest.mark.parametrize("job", STAGES)
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_stages_of_unequal_work_accuse_no_rank(job: str, noise: float) -> None:
    work, roles = STAGES[job]
    for seed in range(20):
        assert slow_ranks(gang(work, list(roles), noise=noise, seed=seed), POLICY) == []


@pytest.mark.parametrize("job", STAGES)
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_the_same_stages_accuse_no_rank_when_no_role_is_set(job: str, noise: float) -> None:
    work, roles = STAGES[job]
    for seed in range(20):
        assert slow_ranks(gang(work, [""] * len(roles), noise=noise, seed=seed), POLICY) == []


def test_ranks_that_are_slow_together_are_reported_with_the_doubt() -> None:
    work = [1.0] * 6 + [1.3] * 2
    assert {slow.rank for slow in judge(gang(work, [""] * 8), POLICY)} == {6, 7}
    assert all("2 of 8 ranks without a role" in slow.doubt for slow in judge(gang(work, [""] * 8), POLICY))


def test_ranks_that_fell_back_together_are_named_though_no_role_is_set() -> None:
    """A node that becomes slow takes all of its ranks with it."""
    table = gang([1.0] * 64, [""] * 64)
    table.self_seconds[8:16, 48:] *= 1.2
    assert [slow.rank for slow in slow_ranks(table, POLICY)] == list(range(8, 16))


def test_one_slow_rank_among_equals_is_named_though_no_role_is_set() -> None:
    (slow,) = slow_ranks(gang([1.0] * 7 + [1.1], [""] * 8), POLICY)
    assert slow.rank == 7
    assert 1.08 < slow.ratio < 1.12


def test_work_that_is_spread_very_unevenly_needs_more_of_an_excess() -> None:
    uneven = gang([1.0] * 31 + [1.1], ["stage"] * 32, noise=0.25)
    even = gang([1.0] * 31 + [1.1], ["stage"] * 32, noise=0.02)
    assert slow_ranks(uneven, POLICY) == []
    assert [slow.rank for slow in slow_ranks(even, POLICY)] == [31]


def test_one_rank_without_reports_hides_no_other() -> None:
    table = gang([1.0] * 7 + [1.2], [""] * 8)
    table.self_seconds[0] = np.nan
    never = replace(table, last_step=np.where(np.arange(8) == 0, -1, table.last_step))
    stopped = replace(table, last_step=np.where(np.arange(8) == 0, 12, table.last_step))
    assert [slow.rank for slow in slow_ranks(never, POLICY)] == [7]
    assert [slow.rank for slow in slow_ranks(stopped, POLICY)] == [7]


def test_a_slow_rank_is_found_through_gaps() -> None:
    table = gang([1.0] * 15 + [1.15], [""] * 16)
    table.self_seconds[np.random.default_rng(3).random(table.self_seconds.shape) < 0.3] = np.nan
    assert [slow.rank for slow in slow_ranks(table, POLICY)] == [15]


def test_a_rank_of_which_too_little_is_known_is_not_judged() -> None:
    table = gang([1.0] * 15 + [2.0], [""] * 16)
    table.self_seconds[15, ::3] = np.nan
    table.self_seconds[15, 1::3] = np.nan
    assert judge(table, POLICY) == []


def test_a_rank_that_keeps_up_again_is_not_named_any_more() -> None:
    table = gang([1.0] * 16, [""] * 16)
    table.self_seconds[3, :88] *= 1.2
    assert slow_ranks(table, POLICY) == []


def test_the_same_steps_give_the_same_verdict_whenever_they_are_looked_at() -> None:
    """The ring of the control plane has moved on by some steps: the windows have not."""
    table = gang([1.0] * 15 + [1.2], [""] * 16, steps=120)
    later = replace(table, first_step=7, self_seconds=table.self_seconds[:, 7:])
    assert judge(table, POLICY) == judge(later, POLICY)


def test_gangs_that_are_judged_together_are_judged_like_each_by_itself() -> None:
    sound, slow = [1.0] * 8, [1.0] * 5 + [1.2, 1.0, 1.0]
    several = [
        gang(sound, [""] * 8),
        gang(slow, [""] * 8),
        gang([1.0, 1.0], ["", ""]),  # too few to compare
        gang(slow * 2, ["a"] * 8 + ["b"] * 8, steps=75),  # fewer windows
        gang(slow, [""] * 8, steps=10),  # not one
        gang(slow * 3, ["a"] * 8 + [""] * 16, seed=2),
        gang(slow[::-1], [""] * 8, seed=3),
    ]
    together = judge_all(several, POLICY)
    assert together == [judge(one, POLICY) for one in several]
    assert [[slow.rank for slow in one] for one in together] == [[], [5], [], [5, 13], [], [5, 13, 21], [2]]
    assert judge_all([], POLICY) == []


def test_steps_are_judged_once_for_a_policy_and_again_where_anything_differs() -> None:
    looked_at: list[int] = []

    def judged(tables: Sequence[StepTable], policy: Straggler) -> list[list[SlowRank]]:
        looked_at.append(len(tables))
        return judge_all(tables, policy)

    policy, even, odd = Straggler(), gang([1.0] * 8, [""] * 8), gang([1.0] * 7 + [1.5], [""] * 8)
    first = judged_once(judged, [even, odd], policy)
    assert first == judge_all([even, odd], policy)
    assert [bool(one) for one in first] == [False, True]
    later = [replace(one, advanced_at=one.advanced_at + 1.0) for one in (even, odd)]
    assert judged_once(judged, later, policy) == first
    assert looked_at == [2, 0], "the same steps, in a later table"
    others = {
        "steps": replace(odd, self_seconds=odd.self_seconds.copy()),
        "roles": replace(odd, roles=("tp",) * 8),
        "nodes": replace(odd, nodes=("n1",) * 8),
        "first_step": replace(odd, first_step=1),
        "replicas": replace(odd, replicas=np.arange(8)),
        "work": replace(odd, work=np.ones_like(odd.self_seconds)),
    }
    for name, one in others.items():
        looked_at.clear()
        judged_once(judged, [odd], policy)
        assert judged_once(judged, [one], policy) == judge_all([one], policy), name
        assert looked_at[-1] == 1, name
    looked_at.clear()
    judged_once(judged, [odd], policy)
    judged_once(judged, [odd], policy.model_copy(update={"ratio": 2.0}))
    assert looked_at == [1, 1]


def test_more_gangs_than_are_judged_at_once_are_all_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_controlplane.detect.slow_ranks.RANKS_AT_ONCE", 20)
    works = [[1.0] * 7 + [1.2], [1.2] + [1.0] * 7] * 4
    several = [gang(work, [""] * 8, seed=seed) for seed, work in enumerate(works)]
    assert [[slow.rank for slow in one] for one in judge_all(several, POLICY)] == [[7], [0]] * 4


def test_many_small_roles_are_judged_like_each_by_itself() -> None:
    crowd = GeneratedGang(300, 3, 0.02, seed=4)
    crowd.slow_down(np.array([10, 200]), 0.2)
    crowd.train(100)
    assert [slow.rank for slow in crowd.named(POLICY)] == [10, 200]


@pytest.mark.integration
def test_noise_names_at_most_one_rank_in_a_thousand_days_of_ranks() -> None:
    """A share of what the bench looks at. At one in 20,000, it has two or more in one run of thirty."""
    found = [false_alarms(20_000, peers, 0.05, rounds=60, seed=7) for peers in (4, 8, 16, 64)]
    assert sum(days for _, days in found) > 5_000
    assert sum(alarms for alarms, _ in found) <= 1


@pytest.mark.parametrize("peers", [4, 8, 16, 64])
def test_a_tenth_slower_is_found_within_a_hundred_steps(peers: int) -> None:
    taken = steps_to_detection(200, peers, 0.015, 0.10, seed=peers)
    assert all(steps is not None and steps <= 100 for steps in taken)


@pytest.mark.parametrize(("peers", "share"), [(4, 0.98), (16, 0.99), (64, 0.995)])
def test_also_where_work_is_spread_unevenly(peers: int, share: float) -> None:
    taken = steps_to_detection(400, peers, 0.05, 0.10, seed=peers)
    assert sum(steps is not None and steps <= 100 for steps in taken) >= share * len(taken)


@pytest.mark.timed
@pytest.mark.parametrize("gaps", [0.0, 0.01])
def test_a_hundred_thousand_ranks_are_judged_in_a_fraction_of_a_second(gaps: float) -> None:
    """The bench measures it; this bound is loose, for machines that do other things as well."""
    crowd = GeneratedGang(100_000, 100_000, 0.05, seed=1, role="")
    crowd.train(128)
    table = crowd.table()
    table.self_seconds[np.random.default_rng(2).random(table.self_seconds.shape, np.float32) < gaps] = np.nan
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        judge(table, POLICY)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.5
