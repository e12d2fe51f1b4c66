"""Published figures, and what the simulator measured, are found again; with fewer runs than docs/plan.md has."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest

from tests.plan import published, simulated
from tests.plan.__main__ import PAGE, SEEDS, line_of
from understudy_controlplane.cli.plan.published import way, ways
from understudy_controlplane.figures.plan_site import Effect


def test_llama_3s_interruptions_and_effective_time_are_found_again() -> None:
    assert published.llama3(range(6)).holds


def test_metas_formula_holds_where_losses_are_small() -> None:
    assert published.meta(range(3)).holds


@pytest.mark.parametrize("machines", [256, 512])
def test_byterobusts_pools_are_found_again(machines: int) -> None:
    """The other two lie so close to the next number that they take centuries: docs/plan.md has them."""
    assert published.byterobust_pool(machines, range(8), days=365.0) == published.BYTEROBUST[machines]


def test_hlats_two_figures_fit_one_rate_and_a_person_who_takes_hours() -> None:
    assert published.hlat(range(10)).holds


def test_the_model_agrees_with_what_the_simulator_measured_within_six_points() -> None:
    """Scenarios from which no time was taken; 5.5 points are lost in them."""
    known = simulated.recorded()
    detect = simulated.fitted(known[: simulated.FITTED])
    errors = [simulated.predicted(one, detect) - one.ettr for one in known[simulated.FITTED :]]
    assert len(errors) == 40
    assert abs(fmean(errors)) < 0.015
    assert fmean(map(abs, errors)) < 0.02
    assert max(map(abs, errors)) < 0.06


def test_the_demos_timeline_gives_the_demos_ettr() -> None:
    measured, found = published.demo_ettr()
    assert measured - 0.05 < found < measured


@pytest.mark.parametrize("check", [published.demo, published.simulator])
def test_the_table_of_the_documents_is_what_the_model_gives_now(check: Callable[[range], published.Row]) -> None:
    """Rows that need no runs with seeds; `python -m tests.plan` writes all."""
    row = check(SEEDS)
    assert line_of(row) in PAGE.read_text().splitlines()


def test_on_the_same_faults_each_way_is_as_good_as_it_can_do() -> None:
    found = {one.way: one for one in published.compared(16_384, 20.0, range(3), spares=24)}
    order = ["plain Slurm", "Slurm with NHC", "understudy run"]
    ettrs = [found[name].ettr for name in order]
    assert ettrs == sorted(ettrs)
    assert found["understudy run"].pages < found["plain Slurm"].pages


def test_every_way_has_a_time_for_every_effect() -> None:
    effects = set(Effect) - {Effect.FALSE_ALARM}
    assert all(set(one.detect) == effects for one in ways())
    assert way("understudy run").by_person == frozenset()
