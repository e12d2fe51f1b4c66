"""GPU memory that wears out faster and faster: a warning before the driver itself concludes anything. Recorded only.

What is compared is a GPU with itself: corrected errors of the last day with those of the day before, and rows that were
remapped for uncorrectable errors within a week. How likely a failure follows is judgement: no open data set has these
counters beside failures. So nothing is done; the finding names what an operator may do, and whether that would pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from understudy_agent.wire import Gpu
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gpu import WearSample
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

DAY_SECONDS = 86_400.0
WEEK_SECONDS = 7 * DAY_SECONDS

CORRECTED_PER_DAY_MIN = 1000
GROWTH_MIN = 4.0
"""Times as many as on the day before."""

REMAPPED_IN_WEEK_MIN = 2

CHANCE_BY_CORRECTED = 0.1
CHANCE_BY_ROW = 0.05
CHANCE_MAX = 0.5
"""Of a failure within a day. Judgement."""

UNPLANNED_SECONDS = 600.0
"""What a failure costs a gang besides its start and the steps since its last checkpoint: until it is found and the gang
has nodes again. Judgement."""


@dataclass(frozen=True, slots=True)
class Wear:
    corrected_per_day: float
    corrected_per_day_before: float
    remapped_in_week: int

    @property
    def faster(self) -> bool:
        few = max(self.corrected_per_day_before, CORRECTED_PER_DAY_MIN / GROWTH_MIN)
        return self.corrected_per_day >= GROWTH_MIN * few

    @property
    def chance(self) -> float:
        """Of a failure within a day; 0: nothing speaks for one."""
        rows = self.remapped_in_week if self.remapped_in_week >= REMAPPED_IN_WEEK_MIN else 0
        well = (1 - CHANCE_BY_CORRECTED * self.faster) * (1 - CHANCE_BY_ROW) ** rows
        return min(CHANCE_MAX, 1 - well)


def move_pays(chance: float, start_seconds: float, redone_seconds: float) -> bool:
    """Whether a move right after a checkpoint costs less than waiting, as expected: it costs the gang's start for sure;
    a failure costs the same, and the steps since the last checkpoint, and the time until it is found.
    """
    return start_seconds < chance * (start_seconds + redone_seconds + UNPLANNED_SECONDS)


def wear_of(samples: Sequence[WearSample], now: float) -> Wear:
    """`samples` in order, of one GPU without a reset of its counters."""
    day, before = _at(samples, now - DAY_SECONDS), _at(samples, now - 2 * DAY_SECONDS)
    week = next((one for one in samples if one.at >= now - WEEK_SECONDS), samples[-1])
    last = samples[-1]
    return Wear(
        _per_day(day, last),
        _per_day(before, day) if before.at < day.at else 0.0,
        last.remapped - week.remapped,
    )


def _at(samples: Sequence[WearSample], moment: float) -> WearSample:
    """The last one before it, or the first."""
    return next((one for one in reversed(samples) if one.at <= moment), samples[0])


def _per_day(first: WearSample, last: WearSample) -> float:
    """Less than a quarter of a day says nothing."""
    seconds = last.at - first.at
    return (last.corrected - first.corrected) * DAY_SECONDS / seconds if seconds >= DAY_SECONDS / 4 else 0.0


def wear_trends(snapshot: Snapshot) -> Iterator[Finding]:
    for (name, uuid), samples in snapshot.gpu_wear.items():
        node = snapshot.nodes.get(name)
        gpu = next((one for one in node.gpus if one.uuid == uuid), None) if node is not None else None
        if node is None or gpu is None or not samples:
            continue
        wear = wear_of(samples, snapshot.now)
        if wear.chance:
            yield _finding(snapshot, node, gpu, wear)


def _finding(snapshot: Snapshot, node: NodeView, gpu: Gpu, wear: Wear) -> Finding:
    parts = []
    if wear.faster:
        parts.append(
            f"{wear.corrected_per_day:.0f} corrected memory errors a day, {wear.corrected_per_day_before:.0f} before"
        )
    if wear.remapped_in_week >= REMAPPED_IN_WEEK_MIN:
        parts.append(f"{wear.remapped_in_week} memory rows remapped within a week")
    managed = [job for job in snapshot.job_on(node.name) if job.managed]
    advice = "".join(
        f"; `understudy job move {job.key.job_id} --off {node.name} --at-checkpoint` takes the gang off it"
        for job in managed[:1]
    )
    what = f"wears out faster: {', '.join(parts)}; it may fail soon (a guess: {wear.chance:.0%} within a day){advice}"
    return gpu_finding(
        node,
        gpu,
        Signal.RECORDED,
        "memory.wear",
        what,
        corrected_per_day=round(wear.corrected_per_day),
        corrected_per_day_before=round(wear.corrected_per_day_before),
        remapped_in_week=wear.remapped_in_week,
        chance_within_a_day=round(wear.chance, 3),
        moves=_moves(snapshot, node, wear),
    )


def _moves(snapshot: Snapshot, node: NodeView, wear: Wear) -> str:
    """Whether a move at the gang's next checkpoint pays by expected cost, in words."""
    tables = [table for table in snapshot.tables.values() if node.name in table.nodes]
    if not tables or not tables[0].durations.startup:
        return "not known"
    at = snapshot.checkpointed_at.get(tables[0].job)
    redone = 0.0 if at is None else (snapshot.now - at) / 2
    return "pays" if move_pays(wear.chance, tables[0].durations.startup, redone) else "does not pay"
