"""The database of a year: what its rows take is what the documents say, and retention leaves it as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.store.query_plans import GROWING
from tests.year import KEPT, NOW, Shape, write_year
from understudy_controlplane.pruner import Pruner
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.retention import RetentionStore

SIZES = re.compile(r"\| `(\w+)` \|.*\| ([\d,]+) \| (\d+) \| ([\d.]+) \|")
DOCUMENTED = {
    table: (int(rows.replace(",", "")), int(size), float(megabytes))
    for table, rows, size, megabytes in SIZES.findall((REPOSITORY / "docs" / "sizing.md").read_text())
}
LIST_MIN = 1000
"""Rows from which pages that are half full do not mislead."""


class StoodClock:
    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def test_its_rows_take_what_the_documents_say_and_none_is_too_old(tmp_path: Path) -> None:
    written = write_year(tmp_path / "year.db", Shape().scaled(0.01))
    measured = {table: size / rows for table, (rows, size) in written.items() if rows >= LIST_MIN}
    assert len(measured) > 8
    for table, size in measured.items():
        assert size == pytest.approx(DOCUMENTED[table][1], rel=0.25), table
    engine = open_database(f"sqlite:///{tmp_path / 'year.db'}")
    assert Pruner(RetentionStore(engine), lambda: KEPT, StoodClock()).count() == {}
    engine.dispose()


def test_the_documents_name_every_table_that_grows_and_compute_its_size() -> None:
    few = {"launch_end", "anomaly_clearance"}
    assert GROWING - few <= DOCUMENTED.keys()
    for table, (rows, size, megabytes) in DOCUMENTED.items():
        assert rows * size / 1e6 == pytest.approx(megabytes, rel=0.05, abs=0.1), table
