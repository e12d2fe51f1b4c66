"""What a rule usually takes out, by whole days of the four weeks that ended a week ago; and signals of lemons."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from tests import builders as b
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.gpu import Replacement
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.observe.node_history import NodeHistory
from understudy_controlplane.observe.sources import JournalReads, LemonReads


class Repairs:
    def __init__(self, *days_ago: float) -> None:
        now = b.NOW // DAY_SECONDS * DAY_SECONDS
        self.quarantines = tuple(Quarantine(now - ago * DAY_SECONDS, "n1", "xid.79") for ago in days_ago)

    def quarantined_since(self, since: float) -> tuple[Quarantine, ...]:
        return tuple(one for one in self.quarantines if one.at >= since)

    def first_quarantine_at(self) -> float | None:
        return min((one.at for one in self.quarantines), default=None)


def usual(*days_ago: float) -> dict[str, int] | None:
    nothing: Any = None
    return NodeHistory(nothing, nothing, cast(JournalReads, Repairs(*days_ago))).usual_quarantines(b.NOW)


def test_the_worst_day_counts_and_neither_this_week_nor_what_was_long_ago() -> None:
    assert usual(60, 20, 20, 19, 2, 2, 2, 40, 40, 40) == {"xid.79": 2}
    assert usual(60, 2) == {}, "it never did"


def test_a_short_history_says_nothing() -> None:
    assert usual(20, 20) is None
    assert usual() is None


class Lemons:
    def signals(self, since: float, excluded_by: Counter[str]) -> dict[str, LemonSignals]:
        assert not excluded_by
        return {name: LemonSignals(faults=9.0) for name in ("n1", "n2")} if since < b.NOW - DAY_SECONDS else {}


def test_a_machine_that_may_be_another_one_since_the_start_is_no_lemon_until_it_reports() -> None:
    nothing: Any = None
    history = NodeHistory(nothing, cast(LemonReads, Lemons()), nothing)

    def lemons(replaced: dict[str, Replacement], *unseen: str) -> set[str]:
        return {*history.lemon_signals((), 28, replaced, frozenset(unseen), b.NOW)}

    assert lemons({}, "n1") == {"n2"}
    assert lemons({}) == {"n1", "n2"}, "it is the machine of before"
    assert lemons({"n1": Replacement(b.NOW - 9, b.NOW)}) == {"n2"}
