"""Causes of interruptions, in the form of Llama 3's table."""

from __future__ import annotations

import json

import pytest

from tests import REPOSITORY
from understudy_controlplane.figures.causes import table
from understudy_controlplane.fleet.interruption_cause import (
    CPU,
    DRIVER,
    FABRIC,
    GPU,
    GPU_MEMORY,
    GPU_PROCESSOR,
    HANG,
    HOST,
    NVLINK,
    OF_LAUNCH,
    PEOPLE,
    PROGRAM,
    UNKNOWN,
    Cause,
    cause_of,
)

HOUR = 3600.0


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("xid.79", GPU),
        ("xid.48", GPU_MEMORY),
        ("xid.119", GPU_PROCESSOR),
        ("xid.149", NVLINK),
        ("xid.13", PROGRAM),
        ("sxid.20034", NVLINK),
        ("nvml.lost", GPU),
        ("nvml.driver_mismatch", DRIVER),
        ("infiniband.port_down", FABRIC),
        ("event.port_outage", FABRIC),
        ("kernel.machine_check", CPU),
        ("silence.node_dead", HOST),
        ("hang.not_arrived", HANG),
        ("operator.move", PEOPLE),
        ("", UNKNOWN),
        ("new.rule", UNKNOWN),
    ],
)
def test_a_rule_has_the_component_that_failed(rule: str, cause: Cause) -> None:
    assert cause_of(rule) == cause


def test_every_signal_that_is_injected_by_tests_has_a_cause() -> None:
    signals = json.loads((REPOSITORY / "tests" / "data" / "signals.json").read_text())["signals"]
    assert not {one["rule"] for one in signals if one["rule"] and cause_of(one["rule"]) is UNKNOWN}


def test_the_table_has_the_form_of_llama_3() -> None:
    """Llama 3 had 419 unexpected interruptions, 148 by faulty GPUs: 35.3 %, where the paper prints 30.1 %."""
    causes = [GPU] * 148 + [GPU_MEMORY] * 72 + [FABRIC] * 35 + [UNKNOWN] * 164 + [PEOPLE] * 47
    rows = {row.component: row for row in table(causes, {"xid.79": 150, "xid.63": 9}, 54 * 24 * HOUR)}
    faulty, planned = rows["Faulty GPU"], rows[PEOPLE.component]
    assert (faulty.category, faulty.interruptions, faulty.incidents) == ("GPU", 148, 150)
    assert faulty.share == pytest.approx(0.353, abs=5e-4)
    assert faulty.mtbf_hours == pytest.approx(54 * 24 / 148)
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)
    assert (planned.interruptions, planned.share) == (47, 0.0)
    assert [row.interruptions for row in table(causes, {}, HOUR)] == [164, 148, 72, 47, 35]


def test_incidents_that_interrupted_no_job_are_counted_beside() -> None:
    (row,) = table([], {"xid.79": 2, "nvml.lost": 1}, HOUR)
    assert (row.interruptions, row.incidents, row.mtbf_hours, row.share) == (0, 3, None, 0.0)


def test_a_launcher_s_cause_has_one_as_well() -> None:
    assert set(OF_LAUNCH) == {"hardware", "black_hole", "program", "hang", "outside"}
