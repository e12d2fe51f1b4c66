"""Every benchmark still runs, at a size of seconds, and has its figures. Their values mean nothing.

Some take ten seconds and more, or start browsers and other programs. `make long` runs all of them at their full size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.__main__ import MORE, USUAL, measure
from tests.bench.checkpoint import __main__ as checkpoint
from tests.bench.launcher import __main__ as launcher
from tests.bench.result import Size

pytestmark = pytest.mark.integration

ONLY_LONG = ("access", "dashboard", "event", "ha", "operators", "placement", "program_files", "start", "straggler")
MARKS = {
    "slurm_read": pytest.mark.cluster,
    **dict.fromkeys(ONLY_LONG, pytest.mark.long),
}
FIGURES = {
    "report": {"report_processor_microseconds", "reports_for_one_core"},
    "slurm_read": {"parse_nodes_all_changed", "parse_jobs", "read_view", "another_thread_waits"},
    "tick": {"tick_milliseconds", "tick_usual_milliseconds", "tick_silence_milliseconds", "tick_silent_milliseconds"},
    "event": {"event_to_drain_p99_milliseconds", "controller_rss_mebibytes"},
    "scale": {"scale_tick_milliseconds_200", "scale_report_microseconds_200"},
    "start": {"start_seconds_50000_jobs"},
    "hook": {"hook_step", "hook_step_cold", "hook_watched_backward"},
    "footprint": {"agent_cpu", "agent_memory"},
    "straggler": {"straggler_judge_100000_ranks", "straggler_alarms_per_20000_rank_days"},
    "placement": {"placement_milliseconds_2048", "cross_domain_pairs"},
    "access": {"loop_wait_under_readers_p99_milliseconds", "authenticated_report_cost_ratio"},
    "operators": {"cli_status_milliseconds_12500", "routes_milliseconds_12500"},
    "dashboard": {"first_paint_milliseconds_12500", "live_update_milliseconds"},
    "ha": {"takeover_seconds_killed", "planned_handover_seconds", "effects_done_twice", "facts_lost"},
    "program_files": {"start_seconds", "reading_seconds"},
    "hang": {
        "named_right_share",
        "innocents_named",
        "seconds_to_verdict",
        "seconds_to_verdict_2048_ranks",
        "cost_of_collection_share",
    },
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=MARKS[one]) if one in MARKS else one for one in (*USUAL, *MORE)]
)
def test_a_benchmark_runs(name: str) -> None:
    results = measure(name, Size.SMALL)
    assert {one.name for one in results} >= FIGURES[name]
    assert all(one.n for one in results)
    if name == "hang":  # what the product promises, of a few real gangs
        figures = {one.name: one.worst for one in results}
        assert (figures["named_right_share"], figures["innocents_named"]) == (1.0, 0.0)


def test_that_of_the_launcher_runs() -> None:
    assert launcher.measure(4, steady_seconds=0.2)["start_seconds"] > 0


@pytest.mark.long
def test_that_of_checkpoints_runs(tmp_path: Path) -> None:
    figures = checkpoint.results(checkpoint.measure(tmp_path, megabytes=2, rounds=1, sides="peer"))
    assert {one.name for one in figures} >= {"restore_seconds_peer", "catalogue_step_overhead_share"}
