"""A gang with a slow rank tests its GPUs between steps when that pays: from the reports of its ranks to the finding."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

import pytest

from tests.signals.virtual_fleet import Fleet, Gang

pytestmark = pytest.mark.integration

HEALTHY_SECONDS = 400.0
SLOW_SECONDS = 3600.0
SLOWER = 1.25


def with_a_slow_rank(
    folder: Path, slow_seconds: float = SLOW_SECONDS, **config: Any
) -> tuple[Gang, list[dict[str, Any]]]:
    """One of 64 ranks becomes slow for an hour, because its GPU is. Returns the gang and decisions about the rank."""
    fleet = Fleet(folder, [f"n{number}" for number in range(1, 9)], nvml_seconds=30.0, **config)
    gang = fleet.submit(8, step_seconds=5.0, multiplication_seconds=0.0002)
    paces: tuple[tuple[float, dict[int, float]], ...] = ((HEALTHY_SECONDS, {}), (slow_seconds, {11: SLOWER}))
    for seconds, gang.pace in paces:
        until = fleet.now + seconds
        while fleet.now < until:
            fleet.tick(10.0)
        if not gang.pace:
            assert gang.tests == 0, "no rank is slow: nothing is worth a test"
    slow = [one for one in fleet.decisions(0.0) if one["rule"] == "straggler.self_time"]
    fleet.close()
    return gang, slow


def test_a_suspect_is_tested_while_its_job_runs_and_ever_more_rarely(tmp_path: Path) -> None:
    gang, decisions = with_a_slow_rank(tmp_path)
    assert 4 <= gang.tests <= log2(SLOW_SECONDS / 0.002), "each time the slowness has cost twice as much"
    assert {one["to_state"] for one in decisions} == {"suspect"}, "by default the test confirms nothing"


def test_where_the_site_believes_the_test_the_node_is_confirmed_by_it(tmp_path: Path) -> None:
    _, decisions = with_a_slow_rank(tmp_path, straggler={"compute_test_confirms": True, "move_when_it_pays": False})
    assert "quarantined" in {one["to_state"] for one in decisions}
    assert "cause compute: its GPU takes 1.25 times as long" in decisions[-1]["reason"]


def test_in_mode_observe_nothing_is_ordered(tmp_path: Path) -> None:
    gang, decisions = with_a_slow_rank(tmp_path, 900.0, mode="observe")
    assert decisions and gang.tests == 0
