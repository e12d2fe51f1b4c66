"""Keeps the results of slow queries over weeks of history: where NaN appeared first, wrong results, lemon signals,
how many nodes a rule usually takes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from understudy_controlplane.detect.lemon import excluded_by
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.gpu import Replacement
from understudy_controlplane.fleet.job import FirstNan, Job, WrongResult
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.observe.event_cache import EVENT_AGE_MAX_SECONDS
from understudy_controlplane.observe.sources import CheckpointReads, JournalReads, LemonReads

AGE_MAX_SECONDS = 300.0


class NodeHistory:
    def __init__(self, checkpoints: CheckpointReads, lemons: LemonReads, journal: JournalReads) -> None:
        self._checkpoints = checkpoints
        self._lemons = lemons
        self._journal = journal
        self._usual_quarantines: dict[str, int] | None = None
        self._quarantines_read_at = 0.0
        self._anomalies: tuple[tuple[FirstNan, ...], tuple[WrongResult, ...]] = (), ()
        self._newest_anomaly, self._anomalies_read_at = 0, 0.0
        self._lemon_signals: dict[str, LemonSignals] = {}
        self._lemons_read_at = 0.0
        self._replaced: tuple[Mapping[str, Replacement], frozenset[str]] = {}, frozenset()

    def anomalies(self, now: float) -> tuple[tuple[FirstNan, ...], tuple[WrongResult, ...]]:
        """Read again when there is a new anomaly, and every five minutes to drop old ones."""
        newest = self._checkpoints.newest_anomaly()
        if newest != self._newest_anomaly or not 0 <= now - self._anomalies_read_at < AGE_MAX_SECONDS:
            since = now - EVENT_AGE_MAX_SECONDS
            self._anomalies = self._checkpoints.first_nans(since), self._checkpoints.wrong_results(since)
            self._newest_anomaly, self._anomalies_read_at = newest, now
        return self._anomalies

    def lemon_signals(
        self,
        jobs: Iterable[Job],
        days: float,
        replacements: Mapping[str, Replacement],
        unseen: frozenset[str],
        now: float,
    ) -> dict[str, LemonSignals]:
        """Signals by node. Read again every five minutes: a count over weeks does not change within a tick; and when a
        node is another machine. Of a node that was replaced those count that came after the hour of that. One that may
        have been replaced while no control plane ran (`unseen`) has none until its agent reports.
        """
        if (replacements, unseen) != self._replaced or not 0 <= now - self._lemons_read_at < AGE_MAX_SECONDS:
            since, excluded = now - days * DAY_SECONDS, excluded_by(jobs)
            found = self._lemons.signals(since, Counter(excluded))
            hours: dict[float, list[str]] = {}
            for name, one in replacements.items():
                if one.at > since:
                    hours.setdefault(-(-one.at // HOUR_SECONDS) * HOUR_SECONDS, []).append(name)
            for hour, names in hours.items():
                of_new = self._lemons.signals(hour, Counter(excluded))
                found = {name: one for name, one in found.items() if name not in names}
                found |= {name: of_new[name] for name in names if name in of_new}
            self._lemon_signals = {name: one for name, one in found.items() if name not in unseen}
            self._lemons_read_at, self._replaced = now, (replacements, unseen)
        return self._lemon_signals

    def usual_quarantines(self, now: float) -> dict[str, int] | None:
        """Rule → the most nodes that it took out within a day of the four weeks that ended a week ago: what a rule does
        wrong this week is not usual. None: the first quarantine is not that old.
        """
        if not 0 <= now - self._quarantines_read_at < AGE_MAX_SECONDS:
            since, until = now - 35 * DAY_SECONDS, now - 7 * DAY_SECONDS
            first = self._journal.first_quarantine_at()
            known = first is not None and first <= since
            self._usual_quarantines = _worst_days(self._journal.quarantined_since(since), until) if known else None
            self._quarantines_read_at = now
        return self._usual_quarantines


def _worst_days(quarantines: Iterable[Quarantine], until: float) -> dict[str, int]:
    days = Counter((one.rule, one.at // DAY_SECONDS) for one in quarantines if one.at < until)
    worst: dict[str, int] = {}
    for (rule, _), count in days.items():
        worst[rule] = max(count, worst.get(rule, 0))
    return worst
