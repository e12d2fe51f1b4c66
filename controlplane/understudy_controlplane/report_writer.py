"""A report of each week: to a file, and to receivers of notifications, where the site wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.documents import Form
from understudy_controlplane.api.report import document, fleet_report
from understudy_controlplane.api.report_sections import digest
from understudy_controlplane.clock import moment
from understudy_controlplane.decide.notices import of_week
from understudy_controlplane.fleet.durations import DAY_SECONDS, WEEK_SECONDS
from understudy_controlplane.fleet.notice import Notice, NoticeSource
from understudy_controlplane.notify.senders import Attachment
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.history import HistoryStore

log = structlog.get_logger()

LOOK_SECONDS = 600.0
FIRST_MONDAY = 4 * DAY_SECONDS
"""1970-01-05."""

FORMATS = (Form.HTML, Form.JSON)


def last_week(now: float) -> tuple[float, float]:
    """The week, Monday to Sunday in UTC, that ended last."""
    until = now - (now - FIRST_MONDAY) % WEEK_SECONDS
    return until - WEEK_SECONDS, until


def name_of(since: float) -> str:
    """Name such as 2026-W47."""
    return moment(since).strftime("%G-W%V")


def attached(deps: ReadDependencies, notice: Notice) -> Attachment | None:
    """The report that a notice is about, whole. Raises StoreError."""
    if notice.source is not NoticeSource.REPORT:
        return None
    if deps.pulse.snapshot is None:
        raise StoreError("Slurm was not read yet")
    since = FIRST_MONDAY + notice.number * WEEK_SECONDS
    page = document(fleet_report(deps, since, since + WEEK_SECONDS)).rendered(Form.HTML)
    return Attachment(f"understudy-{deps.current.config.cluster}-{name_of(since)}.html", "text/html", page)


class ReportWriter:
    """A file that is there is not written again: after a restart only what is missing of the last week is. A notice is
    known by its week.
    """

    def __init__(self, deps: ReadDependencies, notify: Callable[[Notice], None]) -> None:
        self._deps = deps
        self._notify = notify
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
            self._send()
        except (OSError, StoreError) as error:
            log.exception("weekly_report_not_written", error=f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        config = self._deps.current.config
        if not config.reports.weekly_folder or self._deps.pulse.snapshot is None:
            return
        since, until = last_week(self._deps.clock.now())
        week = name_of(since)
        folder = Path(config.reports.weekly_folder)
        wanted = {form: folder / f"understudy-{config.cluster}-{week}.{form.value}" for form in FORMATS}
        missing = {form: path for form, path in wanted.items() if not path.exists()}
        if not missing:
            return
        report = document(fleet_report(self._deps, since, until))
        for form, path in missing.items():
            _write_whole(path, report.rendered(form))
            log.info("weekly_report_written", path=str(path))

    def _send(self) -> None:
        """Sends the report, unless nothing was recorded yet in the week."""
        config = self._deps.current.config
        wanted = any(one.weekly_report for one in config.notify.receivers.values())
        if not wanted or self._deps.pulse.snapshot is None:
            return
        since, until = last_week(self._deps.clock.now())
        number = int((since - FIRST_MONDAY) // WEEK_SECONDS)
        begins_at = HistoryStore(self._deps.engine).begins_at()
        if begins_at is None or begins_at >= until or self._deps.stores.notices.has(NoticeSource.REPORT, number):
            return
        report = fleet_report(self._deps, since, until)
        self._notify(of_week(number, name_of(since), digest(report), until))


def _write_whole(path: Path, text: str) -> None:
    """Readers see all of it or nothing: others than the owner's group see nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.chmod(0o640)
    unfinished.replace(path)
