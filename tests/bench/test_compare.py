"""Figures that are worse are found, and noise is not taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compare import compared, measured
from tests.bench.result import Ratio, Result, result


def lines(before: Ratio, now: Ratio) -> list[tuple[str, bool]]:
    return list(compared({"tick": {"loop": before}}, {"tick": {"loop": now}}))


@pytest.mark.parametrize(("now", "worse"), [(1.1, False), (1.2, True), (0.5, False)])
def test_a_ratio_is_worse_where_it_grew_by_more_than_the_noise(now: float, worse: bool) -> None:
    assert [one for _, one in lines(Ratio(1.0, 0.02), Ratio(now, 0.02))] == [worse]


def test_growth_within_the_noise_of_both_runs_is_none() -> None:
    assert [one for _, one in lines(Ratio(1.0, 0.2), Ratio(1.4, 0.25))] == [False]


@pytest.mark.parametrize("before", [Ratio(1.0, 0.6), Ratio(1.0, 0.0)])
def test_rounds_that_differ_by_more_than_half_are_unusable(before: Ratio) -> None:
    ((line, worse),) = lines(before, Ratio(9.0, 0.6))
    assert ("unusable" in line, worse) == (True, False)


def test_a_figure_that_was_not_measured_is_named() -> None:
    assert list(compared({"tick": {"loop": Ratio(1.0, 0.0)}}, {})) == [("tick beside loop: not measured", False)]


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    one = result("tick", "ms", [10.0, 30.0, 20.0], {"loop": [1.0, 2.0, 1.0], "none": []}, more_is_better=False)
    assert one.ratios == {"loop": Ratio(15.0, 10 / 15)}
    assert (one.median, one.spread, one.usable) == (20.0, 1.0, False)
    assert "UNUSABLE: its rounds differ by 100%" in str(one)
    assert Result("tick", "ms", 1, 1.0, 1.0).usable


def test_other_files_of_benchmarks_have_no_ratios(tmp_path: Path) -> None:
    (tmp_path / "sim.json").write_text('{"seeds_failed": 0}')
    (tmp_path / "list.json").write_text("[]")
    assert measured(tmp_path) == {}
