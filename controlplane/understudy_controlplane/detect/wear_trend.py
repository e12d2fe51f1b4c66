"""GPU memory that wears out faster and faster: a warning before the driver itself concludes anything.

What is compared is a GPU with itself: corrected errors of the last day with those of the day before, and rows that were
remapped for uncorrectable errors within a week. How likely a failure follows is judgement: no open data set has these
counters beside failures. So nothing is done by default; the finding names what an operator may do, and whether that
would pay. Where the site wants it (`leave_worn`), the node leaves service right after a checkpoint of its gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.durations import DAY_SECONDS, WEEK_SECONDS
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gpu import WearSample
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu

CORRECTED_PER_DAY_MIN = 1000
GROWTH_MIN = 4.0
"""Times as many as on the day before."""

REMAPPED_IN_WEEK_MIN = 2

CHANCE_BY_CORRECTED = 0.1
CHANCE_BY_ROW = 0.05
CHANCE_BY_SPENT_BANK = 0.2
"""Chance if a row was remapped within the week as well: the next fault in this bank cannot be remapped."""

CHANCE_MAX = 0.5
"""Largest chance of a failure within a day. Judgement."""

UNPLANNED_SECONDS = 600.0
"""What a failure costs a gang besides its start and the steps since its last checkpoint: until it is found and the gang
has nodes again. Judgement."""


@dataclass(frozen=True, slots=True)
class Wear:
    corrected_per_day: float
    corrected_per_day_before: float | None  # None: not known
    remapped_in_week: int
    banks_spent: int = 0

    @property
    def faster(self) -> bool:
        if self.corrected_per_day_before is None:
            return False
        few = max(self.corrected_per_day_before, CORRECTED_PER_DAY_MIN / GROWTH_MIN)
        return self.corrected_per_day >= GROWTH_MIN * few

    @property
    def chance(self) -> float:
        """Chance of a failure within a day; 0: no sign of one."""
        rows = self.remapped_in_week if self.remapped_in_week >= REMAPPED_IN_WEEK_MIN else 0
        banks = self.banks_spent if self.remapped_in_week else 0
        well = (1 - CHANCE_BY_CORRECTED * self.faster) * (1 - CHANCE_BY_ROW) ** rows
        well *= (1 - CHANCE_BY_SPENT_BANK) ** banks
        return min(CHANCE_MAX, 1 - well)


@dataclass(frozen=True, slots=True)
class GangCost:
    """What a move, or a failure, costs the gang on the node. Seconds."""

    start: float  # as its last one took
    since_checkpoint: float
    between_checkpoints: float = 0.0  # 0: only one is known

    def move_pays(self, chance: float) -> bool:
        """True if a move now costs less than waiting, as expected. It costs the start and the steps since the last
        checkpoint for sure; a failure costs the start, half of the steps between two, and the time until it is found.
        """
        failure = self.start + self.between_checkpoints / 2 + UNPLANNED_SECONDS
        return self.start + self.since_checkpoint < chance * failure


def wear_of(samples: Sequence[WearSample], now: float) -> Wear:
    """`samples` in order, of one GPU without a reset of its counters."""
    day, before = _at(samples, now - DAY_SECONDS), _at(samples, now - 2 * DAY_SECONDS)
    week = next((one for one in samples if one.at >= now - WEEK_SECONDS), samples[-1])
    last = samples[-1]
    return Wear(
        _per_day(day, last) or 0.0,
        _per_day(before, day),
        last.remapped - week.remapped,
        last.banks_spent,
    )


def _at(samples: Sequence[WearSample], moment: float) -> WearSample:
    """The last one before it, or the first."""
    return next((one for one in reversed(samples) if one.at <= moment), samples[0])


def _per_day(first: WearSample, last: WearSample) -> float | None:
    """None: less than a quarter of a day, which says nothing."""
    seconds = last.at - first.at
    return (last.corrected - first.corrected) * DAY_SECONDS / seconds if seconds >= DAY_SECONDS / 4 else None


def worn_nodes(samples_of: Mapping[tuple[str, str], Sequence[WearSample]], now: float) -> set[str]:
    """Keys are node and uuid."""
    return {node for (node, _), samples in samples_of.items() if samples and wear_of(samples, now).chance}


def wear_trends(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    for (name, uuid), samples in snapshot.history.gpu_wear.items():
        node = snapshot.nodes.get(name)
        gpu = next((one for one in node.gpus if one.uuid == uuid), None) if node is not None else None
        since = [one for one in samples if node is not None and one.at > node.record.cleared_at]
        if node is None or gpu is None or not since:
            continue
        wear = wear_of(since, snapshot.now)
        if wear.chance:
            yield _finding(snapshot, node, gpu, wear, leave=policy.leave_worn)


def _finding(snapshot: Snapshot, node: NodeView, gpu: Gpu, wear: Wear, *, leave: bool) -> Finding:
    parts = []
    if wear.faster:
        parts.append(
            f"{wear.corrected_per_day:.0f} corrected memory errors a day, {wear.corrected_per_day_before:.0f} before"
        )
    if wear.remapped_in_week >= REMAPPED_IN_WEEK_MIN or (wear.remapped_in_week and wear.banks_spent):
        parts.append(f"{wear.remapped_in_week} memory rows remapped within a week")
    if wear.remapped_in_week and wear.banks_spent:
        parts.append(f"{wear.banks_spent} memory banks without a row left to replace a faulty one")
    gangs = [job for job in snapshot.job_on(node.name) if job.managed]
    costs = [cost for job in gangs if (cost := _cost(snapshot, job)) is not None]
    known = len(costs) == len(gangs)
    leaves = leave and known and all(cost.move_pays(wear.chance) for cost in costs)
    soon = known and all(replace(cost, since_checkpoint=0.0).move_pays(wear.chance) for cost in costs)
    advice = ""
    if leave and not leaves:
        advice = "; it leaves service after a checkpoint of its gang, where that pays"
    elif gangs and not leave:
        number = gangs[0].key.job_id
        advice = f"; `understudy job move {number} --off {node.name} --at-checkpoint` takes the gang off it"
    what = f"wears out faster: {', '.join(parts)}; it may fail soon (a guess: {wear.chance:.0%} within a day){advice}"
    return gpu_finding(
        node,
        gpu,
        Signal.WORN if leaves else Signal.RECORDED,
        "memory.wear",
        what,
        Repair.MANUAL_REPAIR if leaves else Repair.NONE,
        corrected_per_day=round(wear.corrected_per_day),
        corrected_per_day_before=None
        if wear.corrected_per_day_before is None
        else round(wear.corrected_per_day_before),
        remapped_in_week=wear.remapped_in_week,
        memory_banks_spent=wear.banks_spent,
        chance_within_a_day=round(wear.chance, 3),
        moves_after_checkpoint="pays" if soon else "does not pay" if known else "not known",
    )


def _cost(snapshot: Snapshot, job: Job) -> GangCost | None:
    """None: its start or its checkpoints are not known."""
    table, at = snapshot.progress.tables.get(job.key), snapshot.progress.checkpointed_at.get(job.key)
    if table is None or not table.durations.startup or at is None:
        return None
    since = max(0.0, snapshot.now - at)
    return GangCost(table.durations.startup, since, snapshot.progress.checkpoint_gaps.get(job.key, 0.0))
