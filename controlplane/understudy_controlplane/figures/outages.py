"""When nodes were out of service: for how long, how many at once, and how soon they failed again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.durations import DAY_SECONDS

WORST_SHARE = 0.05
AGAIN_DAYS = (1.0, 7.0, 30.0)


@dataclass(frozen=True, slots=True)
class Outage:
    node: str
    begin: float
    end: float | None  # None: it goes on


@dataclass(frozen=True, slots=True)
class AgainWithin:
    days: float
    share: float  # of the outages


@dataclass(frozen=True, slots=True)
class OutageSummary:
    count: int
    repair_mean_seconds: float | None  # of those that are over
    repair_median_seconds: float | None
    repair_p90_seconds: float | None
    down_mean: float  # nodes out of service at the same time
    down_max: int
    failed_again: list[AgainWithin]  # the same node, after the outage began
    worst_nodes_share: float  # of the outages, on the worst 5 % of all nodes


def summary(outages: Sequence[Outage], nodes: int, since: float, until: float) -> OutageSummary:
    begun = [one for one in outages if since <= one.begin < until]
    repairs = sorted(one.end - one.begin for one in begun if one.end is not None)
    levels = down_levels(outages, since, until)
    counts = sorted(Counter(one.node for one in begun).values(), reverse=True)
    worst = counts[: round(nodes * WORST_SHARE)]
    return OutageSummary(
        len(begun),
        sum(repairs) / len(repairs) if repairs else None,
        rank_of(0.5, repairs),
        rank_of(0.9, repairs),
        sum(level * seconds for level, seconds in levels.items()) / max(until - since, 1e-9),
        max(levels, default=0),
        [AgainWithin(days, share_again(begun, days)) for days in AGAIN_DAYS],
        sum(worst) / len(begun) if begun else 0.0,
    )


def down_levels(outages: Iterable[Outage], since: float, until: float) -> dict[int, float]:
    """Number of nodes that were out of service at the same time → for how many seconds."""
    changes: list[tuple[float, int]] = []
    for one in _merged(outages):
        begin, end = max(one.begin, since), min(until if one.end is None else one.end, until)
        if end > begin:
            changes += [(begin, 1), (end, -1)]
    levels: dict[int, float] = {}
    level, at = 0, since
    for moment, change in [*sorted(changes), (until, 0)]:
        if moment > at:
            levels[level] = levels.get(level, 0.0) + moment - at
            at = moment
        level += change
    return levels


def _merged(outages: Iterable[Outage]) -> Iterable[Outage]:
    """A node with two faults at the same time is out of service once."""
    by_node: dict[str, list[Outage]] = {}
    for one in sorted(outages, key=lambda one: one.begin):
        of_node = by_node.setdefault(one.node, [])
        last = of_node[-1] if of_node else None
        if last is not None and (last.end is None or one.begin <= last.end):
            end = None if last.end is None or one.end is None else max(last.end, one.end)
            of_node[-1] = Outage(one.node, last.begin, end)
        else:
            of_node.append(one)
    return [one for of_node in by_node.values() for one in of_node]


def share_again(outages: Iterable[Outage], days: float) -> float:
    """Share of the outages that are over after which the same node was out of service again within this time."""
    by_node: dict[str, list[Outage]] = {}
    for one in sorted(outages, key=lambda one: one.begin):
        by_node.setdefault(one.node, []).append(one)
    over = again = 0
    for of_node in by_node.values():
        for number, one in enumerate(of_node):
            if one.end is None:
                continue
            over += 1
            later = of_node[number + 1] if number + 1 < len(of_node) else None
            again += later is not None and later.begin - one.end <= days * DAY_SECONDS
    return again / over if over else 0.0


def rank_of(share: float, ordered: Sequence[float]) -> float | None:
    """The value that this share of them does not exceed; None: there is none."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
