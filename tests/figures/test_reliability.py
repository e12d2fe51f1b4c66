"""Published figures that the calculators give (`FIGURES`), and their limits."""

from __future__ import annotations

import pytest

from understudy_controlplane.figures.reliability import (
    binomial_quantile,
    gpu_days,
    gpu_hours,
    money,
    mtbf,
    per_1000_node_days,
    poisson_quantile,
    quantile_of_levels,
)
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS

LLAMA_SECONDS, LLAMA_GPUS, LLAMA_NODES, LLAMA_FAILURES = 54 * DAY_SECONDS, 16_384, 2_048, 419


def llama_mtbf(failures: int) -> float:
    found = mtbf(LLAMA_SECONDS, failures)
    assert found is not None
    return found


FIGURES = {
    "Llama 3: MTBF, s": (llama_mtbf(LLAMA_FAILURES), 11_135),
    "Llama 3: MTBF, h": (llama_mtbf(LLAMA_FAILURES) / HOUR_SECONDS, 3.093),
    "Llama 3: MTBF with planned interruptions, h": (llama_mtbf(466) / HOUR_SECONDS, 2.781),
    "Llama 3: interruptions a day": (DAY_SECONDS / llama_mtbf(LLAMA_FAILURES), 7.76),
    "Llama 3: per 1000 node-days": (per_1000_node_days(LLAMA_FAILURES, LLAMA_NODES, LLAMA_SECONDS), 3.789),
    "Llama 3: GPU-days per failure": (gpu_days(LLAMA_GPUS, llama_mtbf(LLAMA_FAILURES)), 2_111.5),
    "Llama 3: money": (money(gpu_hours(LLAMA_GPUS, LLAMA_SECONDS), 3.0) / 1e6, 63.70),
    "16,384 GPUs for an hour": (money(gpu_hours(LLAMA_GPUS, HOUR_SECONDS), 3.0), 49_152),
    "99 steps of 2 s on 100,000 GPUs": (gpu_days(100_000, 99 * 2), 229.17),
    "one step": (gpu_days(100_000, 2), 2.315),
    "a copy of 1.6 s": (gpu_days(100_000, 1.6), 1.852),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_published_figure_is_found_again(figure: str) -> None:
    found, published = FIGURES[figure]
    assert found == pytest.approx(published, rel=2e-3), figure


def test_the_spares_that_byterobust_publishes_are_found_again() -> None:
    assert [binomial_quantile(0.99, machines, 0.0012) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


def test_quantiles_at_their_limits() -> None:
    assert [binomial_quantile(0.99, 8, chance) for chance in (0.0, 1.0)] == [0, 8]
    assert [poisson_quantile(0.99, mean) for mean in (0.0, 0.02, 9.26)] == [0, 1, 17]
    assert poisson_quantile(0.99, 1e4) == pytest.approx(1e4 + 2.33 * 100, rel=1e-3)
    assert [quantile_of_levels(share, {0: 98.0, 5: 1.0, 7: 1.0}) for share in (0.5, 0.99, 1.0)] == [0, 5, 7]
    assert quantile_of_levels(0.99, {}) == 0
    assert mtbf(100.0, 0) is None
