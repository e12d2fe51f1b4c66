"""The best interval between checkpoints: published figures, and what must hold for all inputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_controlplane.figures.checkpoint_interval import (
    PRIOR_FAILURES_PER_NODE_DAY,
    best_interval,
    daly_interval,
    efficiency,
    failure_rate,
)

LLAMA_3_SECONDS = 54 * 86_400 / 419
costs = st.floats(1e-3, 1e5)
ratios = st.floats(1e-7, 1.9)


def test_the_mean_time_between_failures_of_llama_3() -> None:
    assert pytest.approx(11_135, abs=1) == LLAMA_3_SECONDS
    assert pytest.approx(7.76, abs=0.005) == 86_400 / LLAMA_3_SECONDS
    assert pytest.approx(419 / (2048 * 54), abs=1e-5) == PRIOR_FAILURES_PER_NODE_DAY
    assert failure_rate(419, 2048 * 54).mtbf(2048) == pytest.approx(LLAMA_3_SECONDS, rel=0.001)


@pytest.mark.parametrize(("cost", "seconds"), [(10, 465), (30, 798), (60, 1116), (300, 2389)])
def test_the_exact_optimum_at_the_failure_rate_of_llama_3(cost: float, seconds: float) -> None:
    assert best_interval(cost, LLAMA_3_SECONDS) == pytest.approx(seconds, abs=0.6)


@pytest.mark.parametrize(("nodes", "hours"), [(100_000, 0.5), (12_500, 4.0)])
def test_a_gang_fails_when_any_of_its_nodes_does(nodes: int, hours: float) -> None:
    much_history = failure_rate(10_000_000, 10_000_000 * 5e4 / 24)
    assert much_history.mtbf(nodes) / 3600 == pytest.approx(hours, rel=1e-4)


@given(st.floats(1.0, 1e6), st.floats(1e-6, 0.28))
def test_dalys_interval_is_close_to_the_exact_one(mtbf: float, ratio: float) -> None:
    assert daly_interval(ratio * mtbf, mtbf) == pytest.approx(best_interval(ratio * mtbf, mtbf), rel=0.003)


def test_dalys_interval_is_the_mean_time_between_failures_where_a_checkpoint_takes_twice_that() -> None:
    assert daly_interval(200, 100) == daly_interval(500, 100) == 100


@given(costs, ratios, st.floats(0.5, 2.0), st.floats(0, 1e4))
def test_no_other_interval_is_better(cost: float, ratio: float, other: float, recovery: float) -> None:
    mtbf = cost / ratio
    best = best_interval(cost, mtbf)
    assert 0 < best <= mtbf
    assert efficiency(best, cost, mtbf, recovery) >= efficiency(best * other, cost, mtbf, recovery) * (1 - 1e-9)


@given(costs, ratios)
def test_the_optimum_satisfies_its_equation(cost: float, ratio: float) -> None:
    mtbf = cost / ratio
    x = best_interval(cost, mtbf) / mtbf
    assert (1 - x) * math.exp(x) == pytest.approx(math.exp(-ratio), rel=1e-9)


@pytest.mark.parametrize(("cost", "mtbf"), [(0, 1), (1, 0), (-1, 1), (math.inf, 1), (math.nan, 1)])
def test_an_impossible_input_is_refused(cost: float, mtbf: float) -> None:
    for function in (best_interval, daly_interval):
        with pytest.raises(ValueError, match="above zero"):
            function(cost, mtbf)


def test_efficiency_is_nothing_where_no_interval_is_ever_finished() -> None:
    assert efficiency(1e9, 1, 1) == efficiency(0, 1, 1) == 0


def test_a_cluster_without_history_has_the_rate_of_the_prior_and_one_with_much_its_own() -> None:
    assert failure_rate(0, 0).per_node_day == pytest.approx(PRIOR_FAILURES_PER_NODE_DAY)
    assert failure_rate(650, 100_000).per_node_day == pytest.approx(6.5e-3, rel=0.002)
    assert failure_rate(0, 1000).per_node_day < PRIOR_FAILURES_PER_NODE_DAY, "a good cluster is better than the prior"
