"""The page of reports: made at most every few minutes, however many look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.report import fleet_report
from understudy_controlplane.api.report_plots import plots
from understudy_controlplane.api.report_sections import Section, sections, summary
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


@dataclass(frozen=True, slots=True)
class ShownReport:
    since: float
    until: float
    summary: Sequence[tuple[str, str]]
    plots: Sequence[tuple[str, Markup]]
    sections: Sequence[Section]


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
        made = ShownReport(found.since, found.until, summary(found), plots(found.costs), sections(found))
        self._made[span] = made
        return made
