"""What interrupted a gang, in the form of Llama 3's table (arXiv 2407.21783, table 5): component, category, count and
share. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from understudy_controlplane.figures.reliability import money, mtbf
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.interruption_cause import PEOPLE, Cause, cause_of


@dataclass(frozen=True, slots=True)
class CauseRow:
    component: str
    category: str
    interruptions: int
    share: float  # of the interruptions that were not planned
    mtbf_hours: float | None  # between these interruptions
    incidents: int  # of nodes, gangs and domains: most interrupt no gang
    lost_gpu_hours: float  # to these interruptions, of jobs whose steps are known
    lost_money: float | None = None


def table(
    interruptions: Iterable[Cause],
    incidents: Mapping[str, int],
    seconds: float,
    lost: Mapping[Cause, float] | None = None,
    price: float | None = None,
) -> list[CauseRow]:
    """The most frequent first. `incidents`: by rule; `lost`: GPU-hours by cause; `price`: of one."""
    counts, of_incidents = Counter(interruptions), Counter[Cause]()
    for rule, count in incidents.items():
        of_incidents[cause_of(rule)] += count
    unplanned = sum(count for cause, count in counts.items() if cause is not PEOPLE)
    hours = lost or {}
    known = dict.fromkeys((*counts, *of_incidents, *hours))
    rows = [
        _row(cause, counts[cause], unplanned, of_incidents[cause], seconds, hours.get(cause, 0.0)) for cause in known
    ]
    if price is not None:
        rows = [replace(row, lost_money=money(row.lost_gpu_hours, price)) for row in rows]
    return sorted(rows, key=lambda row: (-row.interruptions, -row.incidents, row.component))


def _row(cause: Cause, count: int, unplanned: int, incidents: int, seconds: float, lost: float) -> CauseRow:
    share = count / unplanned if unplanned and cause is not PEOPLE else 0.0
    between = mtbf(seconds, count)
    return CauseRow(
        *cause,
        count,
        share,
        None if between is None else between / HOUR_SECONDS,
        incidents,
        lost,
    )
