"""The table of signals in the documents is what the code does, and a healthy fleet raises no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.signals.cases import CASES, EXPECTED
from tests.signals.fault_trace import NODES, faults, lemons, replay
from tests.signals.healthy_day import HealthyDay, healthy_day, together
from tests.signals.measure import as_expected, measure
from tests.signals.recorded import recorded

SOON_SECONDS = 62.0
"""Most signals are found within a minute; `python -m tests.signals` measures all."""


def test_the_recorded_table_has_every_case_and_what_is_expected_of_it() -> None:
    found = recorded().signals
    assert as_expected(found) == []
    assert [one.signal for one in found] == list(EXPECTED)
    assert all((one.seconds is None) == (not one.rule) for one in found)


def test_the_recorded_healthy_day_has_no_alarm_that_acts_and_hardly_a_suspect() -> None:
    day = recorded().day
    assert day.acting == {}
    assert sum(day.suspects.values()) <= day.rank_days / 20_000 + 1
    assert day.nodes == 1000
    assert day.hours >= 24
    assert day.rank_days > 7000


def test_several_days_are_added_up() -> None:
    day = HealthyDay(1000, 24.0, 7500.5, {"checkpoints": 2}, {}, {"straggler.self_time": 1}, {}, {"xid.31": 3})
    both = together([day, replace(day, happened={"evaluations": 1}, suspects={"nvml.lost": 1})])
    assert (both.nodes, both.hours, both.rank_days) == (1000, 48, 15_001)
    assert both.happened == {"checkpoints": 2, "evaluations": 1}
    assert both.suspects == {"nvml.lost": 1, "straggler.self_time": 1}
    assert both.recorded == {"xid.31": 6}


@pytest.mark.integration
def test_what_is_found_within_a_minute_is_found_as_the_table_says(tmp_path: Path) -> None:
    found = {one.signal: one for one in measure(tmp_path, SOON_SECONDS)}
    soon = [one for one in recorded().signals if one.seconds is not None and one.seconds <= SOON_SECONDS]
    assert len(soon) > 40
    assert [found[one.signal] for one in soon] == soon
    never = [one for one in recorded().signals if not one.rule]
    assert [found[one.signal] for one in never] == never


@pytest.mark.integration
def test_half_an_hour_of_a_healthy_fleet_raises_no_alarm(tmp_path: Path) -> None:
    day = healthy_day(tmp_path, nodes=40, hours=0.5)
    assert day.happened["agents upgraded"] > 30 and day.happened["nodes upgraded with a reboot"] > 0
    assert (day.acting, day.suspects) == ({}, {})


def test_every_fault_of_the_trace_has_a_signal_or_a_reason_why_it_has_none() -> None:
    known = faults()
    assert (len(known), len({one.node for one in known}) <= NODES) == (584, True)
    signals = {case.signal for case in CASES}
    assert all(one.signal in signals if one.signal else one.why_none for one in known)
    shown = recorded().trace
    assert shown.faults == len(known)
    assert sum(shown.no_signal.values()) == sum(not one.signal for one in known)
    found = sum(sum(kind.values()) for kind in shown.kinds)
    assert found == sum(bool(one.signal) for one in known)
    assert shown.held_back == 0, "no budget holds a fault of a real year back"


def test_the_list_of_lemons_is_judged_as_it_was_recorded() -> None:
    fitted, default = lemons()
    assert (fitted, default) == (recorded().lemons_fitted, recorded().lemons_default)
    assert fitted.again / fitted.listed > fitted.share_of_others, "a list that says less than none"


@pytest.mark.integration
def test_the_first_faults_of_the_trace_are_found_as_their_signals_are(tmp_path: Path) -> None:
    chosen = [one for one in faults() if one.signal][:12]
    shown = replay(tmp_path, chosen, nodes=24)
    assert sum(shown.drained.values()) >= 10, shown
    assert shown.missed.keys() <= {"PCIe narrower", "port slower"}
