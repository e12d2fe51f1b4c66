"""Sums of a span of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from tests.new_database import new_database
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Engine, open_database
from understudy_controlplane.store.report import ReportStore

SINCE, UNTIL = 1000.0, 2000.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = open_database(new_database(tmp_path / "fleet.db"))
    yield made
    made.dispose()


def add(engine: Engine, table: Any, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table).values(**values))


def recovered(engine: Engine, seconds: float | None, status: str = "succeeded", **values: Any) -> None:
    at = values.pop("at", SINCE)
    ended_at = None if seconds is None else at + seconds
    times = {"fault_at": at - 4, "detected_at": at, "decided_at": at, "ended_at": ended_at}
    add(engine, tables.recovery, kind="pool", plan={}, status=status, **times)


def decided(engine: Engine, subject: str, action: str, because: str, at: float = SINCE) -> None:
    values = {"at": at, "subject": subject, "action": action, "because": because, "rule": "xid.79"}
    add(engine, tables.decision, key="k", table_row=10, reason="", evidence={}, **values)


def test_the_median_is_of_those_that_ended_in_the_span(engine: Engine) -> None:
    for seconds in (9.0, 1.0, 5.0):
        recovered(engine, seconds)
    recovered(engine, 7.0, status="failed")
    recovered(engine, None, status="running")
    recovered(engine, 99.0, at=UNTIL)
    report = ReportStore(engine)
    found = [(one.kind, one.status, one.count, one.median_seconds) for one in report.recoveries(SINCE, UNTIL)]
    assert found == [("pool", "succeeded", 3, 5.0), ("pool", "failed", 1, 7.0)]
    assert report.seconds_lost(SINCE, UNTIL) == 9 + 1 + 5 + 7 + 4 * 4


def test_an_empty_span_has_nothing(engine: Engine) -> None:
    report = ReportStore(engine)
    assert (report.recoveries(SINCE, UNTIL), report.incidents(SINCE, UNTIL)) == ([], [])
    assert report.seconds_lost(SINCE, UNTIL) == 0.0


def test_nodes_and_guards_are_counted_the_largest_first(engine: Engine) -> None:
    for name in ("n1", "n2", "n2"):
        decided(engine, name, "quarantine", "rule")
    decided(engine, "n3", "quarantine", "rule", at=UNTIL)
    decided(engine, "n4", "nothing", "fleet_budget")
    decided(engine, "n4", "nothing", "rule")
    report = ReportStore(engine)
    assert [(one.name, one.count) for one in report.worst_nodes(SINCE, UNTIL)] == [("n2", 2), ("n1", 1)]
    assert [(one.name, one.count) for one in report.quarantines(SINCE, UNTIL)] == [("xid.79", 3)]
    assert [(one.name, one.count) for one in report.held_back(SINCE, UNTIL)] == [("fleet_budget", 1)]


def test_incidents_are_counted_by_rule(engine: Engine) -> None:
    values = {"signal": "hardware_fault", "summary": "", "evidence": {}, "fault_at": SINCE, "nodes": []}
    for kind, at in (("node", SINCE), ("gang", SINCE), ("node", UNTIL)):
        add(engine, tables.incident, subject_kind=kind, subject="x", rule="xid.79", opened_at=at, **values)
    assert [(one.name, one.count) for one in ReportStore(engine).incidents(SINCE, UNTIL)] == [("xid.79", 2)]
