"""Writes a report of each week to a file, where the site wants it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import structlog

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.report import ReportFormat, fleet_report, rendered
from understudy_controlplane.plan.reliability import DAY_SECONDS
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

LOOK_SECONDS = 600.0
WEEK_SECONDS = 7 * DAY_SECONDS
FIRST_MONDAY = 4 * DAY_SECONDS
"""1970-01-05."""

FORMATS = (ReportFormat.HTML, ReportFormat.JSON)


def last_week(now: float) -> tuple[float, float]:
    """The week, Monday to Sunday in UTC, that ended last."""
    until = now - (now - FIRST_MONDAY) % WEEK_SECONDS
    return until - WEEK_SECONDS, until


class ReportWriter:
    """A file that is there is not written again: after a restart only what is missing of the last week is."""

    def __init__(self, deps: ReadDependencies) -> None:
        self._deps = deps
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> None:
        """What fails is logged, and tried again at the next look."""
        try:
            self._write()
        except (OSError, StoreError) as error:
            log.exception("weekly_report_not_written", error=f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        config = self._deps.current.config
        if not config.reports.weekly_folder or self._deps.pulse.snapshot is None:
            return
        since, until = last_week(self._deps.clock.now())
        week = datetime.fromtimestamp(since, UTC).strftime("%G-W%V")
        folder = Path(config.reports.weekly_folder)
        wanted = {form: folder / f"understudy-{config.cluster}-{week}.{form.value}" for form in FORMATS}
        missing = {form: path for form, path in wanted.items() if not path.exists()}
        if not missing:
            return
        report = fleet_report(self._deps, since, until)
        for form, path in missing.items():
            _write_whole(path, rendered(report, form))
            log.info("weekly_report_written", path=str(path))


def _write_whole(path: Path, text: str) -> None:
    """Readers see all of it or nothing: others than the owner's group see nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.chmod(0o640)
    unfinished.replace(path)
