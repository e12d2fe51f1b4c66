"""The page of reports: made at most every few minutes, however many look at it."""

from __future__ import annotations

from typing import NamedTuple

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.documents import Document
from understudy_controlplane.api.report import document, fleet_report
from understudy_controlplane.fleet.durations import DAY_SECONDS

SPANS = {"7d": 7, "30d": 30, "90d": 90}
USUAL = "30d"
KEPT_SECONDS = 300.0
"""A report of a month reads thousands of jobs."""

ROWS_SHOWN = 20

ORIGINS = {
    "interruptions": "interruptions",
    "mean time between interruptions": "interruptions",
    "ETTR of all jobs": "jobs",
    "goodput": "hours",
    "lost": "hours",
    "spares waited": "spares",
    "false alarms": "alarms",
    "incidents": "incidents",
    "recoveries": "recoveries",
    "gangs stood still": "recoveries",
    "quarantines": "quarantines",
}
"""Figure → the table that it comes from."""


class ShownReport(NamedTuple):
    since: float
    until: float
    document: Document


class Reports:
    def __init__(self, deps: ReadDependencies) -> None:
        self._deps = deps
        self._made: dict[str, ShownReport] = {}

    def of(self, span: str) -> ShownReport:
        """`span`: a key of SPANS."""
        now, known = self._deps.clock.now(), self._made.get(span)
        if known is not None and 0 <= now - known.until < KEPT_SECONDS:
            return known
        found = fleet_report(self._deps, now - SPANS[span] * DAY_SECONDS, now)
        made = ShownReport(found.since, found.until, document(found))
        self._made[span] = made
        return made
