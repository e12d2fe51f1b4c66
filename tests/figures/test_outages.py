"""Outages of nodes, and the known figures of a real year of 400 servers."""

from __future__ import annotations

import pytest

from tests.signals.fault_trace import DAY, NODES, faults
from understudy_controlplane.figures.outages import Outage, down_levels, rank_of, summary
from understudy_controlplane.figures.reliability import per_1000_node_days, poisson_quantile, quantile_of_levels

DAYS = 349.0


@pytest.fixture(scope="module")
def year() -> list[Outage]:
    return [Outage(one.node, one.begin * DAY, one.end * DAY) for one in faults()]


def test_the_trace_has_its_known_rates_and_repair_times(year: list[Outage]) -> None:
    found = summary(year, NODES, 0.0, DAYS * DAY)
    assert found.count == 584
    assert per_1000_node_days(found.count, NODES, DAYS * DAY) == pytest.approx(4.18, abs=0.005)
    assert found.repair_mean_seconds == pytest.approx(132.8 * 3600, rel=1e-3)
    assert found.repair_median_seconds == pytest.approx(20.4 * 3600, rel=3e-3)
    assert found.repair_p90_seconds == pytest.approx(329 * 3600, rel=2e-3)
    assert [(one.days, round(100 * one.share, 1)) for one in found.failed_again] == [(1, 22.6), (7, 31.3), (30, 42.8)]
    assert 100 * found.worst_nodes_share == pytest.approx(24.5, abs=0.05)


def test_history_needs_more_spares_than_poisson_says(year: list[Outage]) -> None:
    levels = down_levels(year, 0.0, DAYS * DAY)
    mean = summary(year, NODES, 0.0, DAYS * DAY).down_mean
    variance = sum((level - mean) ** 2 * seconds for level, seconds in levels.items()) / (DAYS * DAY)
    assert (mean, variance) == pytest.approx((9.26, 53.6), rel=1e-3)
    shares = (0.9, 0.99, 0.999)
    assert [quantile_of_levels(share, levels) for share in shares] == [22, 31, 33]
    assert [poisson_quantile(share, mean) for share in shares] == [13, 17, 20]


def test_a_node_with_two_faults_at_once_is_out_of_service_once() -> None:
    outages = [Outage("n1", 0.0, 10.0), Outage("n1", 5.0, 20.0), Outage("n2", 15.0, None)]
    assert down_levels(outages, 0.0, 40.0) == {1: 15.0 + 20.0, 2: 5.0}
    assert down_levels([], 0.0, 40.0) == {0: 40.0}


def test_what_began_before_the_span_is_down_in_it_and_no_new_outage() -> None:
    found = summary([Outage("n1", 0.0, 20.0), Outage("n2", 5.0, None)], 10, 10.0, 30.0)
    assert (found.count, found.down_mean, found.down_max) == (0, 1.5, 2)
    assert found.repair_mean_seconds is None
    assert rank_of(0.5, []) is None
