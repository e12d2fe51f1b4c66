"""Every benchmark still runs, at a size of seconds, and has its figures. Their values mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.__main__ import MORE, USUAL, measure
from tests.bench.checkpoint import __main__ as checkpoint
from tests.bench.launcher import __main__ as launcher
from tests.bench.result import Size

pytestmark = pytest.mark.integration

NEEDS_SLURM = ("slurm_read",)
FIGURES = {
    "ingest": {"ingest_full_reports", "tick_1024_ranks"},
    "slurm_read": {"parse_nodes_all_changed", "parse_jobs", "read_view", "another_thread_waits"},
    "tick": {"tick_first", "tick_all_heard", "tick_fall_silent", "tick_silent"},
    "hook": {"hook_step", "hook_step_cold", "hook_watched_backward"},
    "footprint": {"agent_cpu", "agent_memory"},
    "straggler": {"straggler_judge_100000_ranks", "straggler_alarms_per_20000_rank_days"},
    "placement": {"placement_milliseconds_2048", "cross_domain_pairs"},
    "access": {"loop_wait_under_readers_p99_milliseconds", "authenticated_report_cost_ratio"},
    "operators": {"cli_status_milliseconds_12500", "routes_milliseconds_12500"},
    "dashboard": {"first_paint_milliseconds_12500", "live_update_milliseconds"},
    "program_files": {"start_seconds", "reading_seconds"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.cluster) if one in NEEDS_SLURM else one for one in (*USUAL, *MORE)]
)
def test_a_benchmark_runs(name: str) -> None:
    results = measure(name, Size.SMALL)
    assert {one.name for one in results} >= FIGURES[name]
    assert all(one.n for one in results)


def test_that_of_the_launcher_runs() -> None:
    assert launcher.measure(4)["start_seconds"] > 0


def test_that_of_checkpoints_runs(tmp_path: Path) -> None:
    figures = checkpoint.results(checkpoint.measure(tmp_path, megabytes=2, rounds=1, sides="peer,torch_save"))
    assert {one.name for one in figures} >= {"restore_seconds_peer", "catalogue_step_overhead_share"}
