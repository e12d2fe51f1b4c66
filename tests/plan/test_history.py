"""A plan from a site's own history: its outages, its interruptions and its own times of recovery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.plan.published import ASKED
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.api.report_sections import plan_command
from understudy_controlplane.cli.plan.commands import plan
from understudy_controlplane.cli.plan.history import OwnHistory, read
from understudy_controlplane.cli.plan.published import faults_of, site_of, way
from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.figures.plan_site import Effect
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.recovery import RecoveryKind

PHASES = {RecoveryKind.POOL_SWAP: {"detect": 7.0, "swap": 3.0, "start": 40.0, "restore": 20.0}}


def history(outages: int, days: float = 100.0) -> OwnHistory:
    seen = [Outage(f"n{number}", number * DAY_SECONDS, (number + 2) * DAY_SECONDS) for number in range(outages)]
    return OwnHistory(100, days * DAY_SECONDS, seen, {Effect.HANG: 5}, PHASES)


def test_a_long_history_is_replayed_and_what_interrupted_gangs_without_an_outage_comes_at_its_rate() -> None:
    prior = site_of(ASKED).faults
    faults = history(30).faults(prior)
    assert faults.trace is not None
    assert (len(faults.trace.outages), faults.trace.nodes) == (30, 100)
    assert set(faults.repairs) == {2 * DAY_SECONDS}
    rates = {one.effect: one.per_1000_node_days for one in faults.causes}
    assert rates == {Effect.HANG: pytest.approx(0.5), Effect.FALSE_ALARM: 0.38}


def test_a_short_history_mixes_its_rate_with_llama_3s_and_is_named_short() -> None:
    """1,000 node-days without an outage: less than Llama 3's 3.79."""
    short = history(0, days=10.0)
    faults = short.faults(site_of(ASKED).faults)
    assert faults.trace is None
    real = sum(one.per_1000_node_days for one in faults.causes if one.effect is not Effect.FALSE_ALARM)
    assert 0.5 < real < 1.0
    assert "too short" in short.words


def test_options_change_a_history_once_and_own_repairs_have_those_of_the_ladder_already() -> None:
    """A short one has the published repairs, of which a quarter are short."""
    prior = faults_of(ASKED.faults)
    short = site_of(ASKED, history(0, days=10.0).faults(prior)).faults
    assert sorted(short.repairs) == sorted(site_of(ASKED).faults.repairs)
    racks = replace(ASKED, rack=(0.1, 4))
    causes = site_of(racks, history(0, days=10.0).faults(prior)).faults.causes
    assert [one.name for one in causes].count("Rack or switch") == 1
    long = site_of(replace(ASKED, repair=None), history(30).faults(prior), own_repairs=True).faults
    assert set(long.repairs) == {2 * DAY_SECONDS}
    (rack,) = (one for one in site_of(racks, history(30).faults(prior)).faults.causes if one.name == "Rack or switch")
    assert rack.per_1000_node_days > 0.4 * 3, "also of the outages that are replayed: three in 1,000 node-days"


def test_its_own_times_replace_the_published_ones_of_the_way_that_it_used() -> None:
    site = site_of(ASKED)
    pool, timed = history(30).timed(way("Understudy's pool"), site)
    assert (pool.detect[Effect.DEAD], pool.detect[Effect.BROKEN], pool.swap_pool) == (7.0, 7.0, 3.0)
    assert (timed.start_cold, timed.tiers[0].restore) == (40.0, 20.0)
    assert history(30).timed(way("understudy run"), site) == (way("understudy run"), site)


@pytest.mark.integration
@pytest.mark.patient
def test_what_a_control_plane_has_stored_is_read(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    found = read(rehearsal.control_plane.engine, rehearsal.clock.now())
    assert found is not None
    assert [one.node for one in found.outages] == ["n3"]
    assert found.nodes == 8
    of_pool = found.phases[RecoveryKind.POOL_SWAP]
    assert 0 < of_pool["swap"] < 60
    assert not found.is_long


@pytest.mark.parametrize(
    ("jobs", "price", "options"),
    [
        ([(64, 8), (1024, 128)], 2.5, {"gpus": 1024, "gpus_per_node": 8, "price": 2.5}),
        ([(4, 1)], None, {"gpus": 4, "gpus_per_node": 4, "price": None}),
        ([], None, {"gpus": 800, "gpus_per_node": 8, "price": None}),
    ],
)
def test_a_report_prints_a_plan_for_its_largest_gang(
    jobs: list[tuple[int, int]], price: float | None, options: dict[str, object]
) -> None:
    rows = [SimpleNamespace(gpus=gpus, nodes=nodes) for gpus, nodes in jobs]
    costs = cast("Any", SimpleNamespace(jobs=rows, gpus=800, nodes=100, gpu_hour_price=price))
    program, name, command, *arguments = plan_command(costs).split()
    assert (program, name) == ("understudy", "plan")
    made = plan.commands[command].make_context(command, arguments)
    assert made.params | options == made.params
    assert (made.params["from_history"], made.params["compare"]) == (True, True)
