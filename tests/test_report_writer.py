"""A report of each week as files, where the site wants it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.report_writer import ReportWriter, last_week


@pytest.mark.parametrize(
    "now", [datetime(2026, 11, day, hour, tzinfo=UTC) for day, hour in ((23, 0), (24, 1), (29, 23))], ids=str
)
def test_the_last_week_goes_from_monday_to_sunday(now: datetime) -> None:
    found = [datetime.fromtimestamp(at, UTC) for at in last_week(now.timestamp())]
    assert found == [datetime(2026, 11, day, tzinfo=UTC) for day in (16, 23)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "reports"


@pytest.fixture
def rehearsal(tmp_path: Path, folder: Path) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path, reports={"weekly_folder": str(folder)})
    made.run(1)
    yield made
    made.control_plane.close()


@pytest.mark.integration
def test_each_week_is_written_once_and_what_is_missing_again(rehearsal: Rehearsal, folder: Path) -> None:
    writer = ReportWriter(rehearsal.control_plane.reads, rehearsal.control_plane.notifier.add)
    writer.look()
    page, data = sorted(folder.iterdir())
    assert [page.suffix, data.suffix] == [".html", ".json"]
    since, until = last_week(rehearsal.clock.now())
    week = datetime.fromtimestamp(since, UTC).isocalendar()
    assert page.name == f"understudy-testbed-{week.year}-W{week.week:02}.html"
    report = json.loads(data.read_text())
    assert (report["since"], report["until"]) == (since, until)
    assert page.stat().st_mode & 0o777 == 0o640
    data.unlink()
    page.write_text("kept")
    writer.look()
    assert (page.read_text(), data.exists()) == ("kept", True)


@pytest.mark.integration
def test_a_folder_that_cannot_be_written_is_logged_and_tried_again(rehearsal: Rehearsal, folder: Path) -> None:
    writer = ReportWriter(rehearsal.control_plane.reads, rehearsal.control_plane.notifier.add)
    folder.write_text("a file where the folder should be")
    with capture_logs() as logs:
        writer.look()
    assert [one["event"] for one in logs] == ["weekly_report_not_written"]
    folder.unlink()
    writer.look()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.integration
def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.run(1)
    before = sorted(tmp_path.iterdir())
    ReportWriter(rehearsal.control_plane.reads, rehearsal.control_plane.notifier.add).look()
    assert sorted(tmp_path.iterdir()) == before
    rehearsal.control_plane.close()
