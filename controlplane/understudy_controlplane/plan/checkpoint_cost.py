"""What a job's checkpoints cost, how often it saves, and what another interval would cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from understudy_controlplane.fleet.job import MeasuredCheckpoint
from understudy_controlplane.fleet.saving import SaveCost
from understudy_controlplane.plan.checkpoint_interval import FailureRate, best_interval, daly_interval, efficiency


@dataclass(frozen=True, slots=True)
class IntervalReport:
    """Seconds. Lost is what saving and repeating steps after failures cost, in GPU-hours for each hour of the gang."""

    cost: float
    is_measured: bool  # False: the time until it was written stands for the time that it held the training up
    write: float
    mtbf: float
    today: float | None  # None: fewer than two checkpoints of an attempt are known
    best: float
    daly: float
    gpus: int  # one for each rank
    lost_today: float | None
    lost_best: float


def cost_of(newest: Sequence[MeasuredCheckpoint], rate: FailureRate, nodes: int) -> SaveCost:
    """Of the median of the newest: a single slow one says little."""
    blocked = [one.blocked_seconds for one in newest if one.blocked_seconds]
    written = [one.write_seconds for one in newest if one.write_seconds]
    write = median(written) if written else 0.0
    seconds, mtbf = median(blocked) if blocked else write or None, rate.mtbf(nodes)
    return SaveCost(seconds, write, mtbf, best_interval(seconds, mtbf) if seconds else None, bool(blocked))


def report(newest: Sequence[MeasuredCheckpoint], cost: SaveCost) -> IntervalReport | None:
    """`newest`: newest first. None: no checkpoint was measured."""
    if not cost.seconds or cost.best_seconds is None or not newest:
        return None
    best, gpus, today = cost.best_seconds, newest[0].world_size, interval_of(newest)
    kept_today = None if today is None else efficiency(max(today - cost.seconds, 1e-9), cost.seconds, cost.mtbf_seconds)
    return IntervalReport(
        cost.seconds,
        cost.exact,
        cost.write_seconds,
        cost.mtbf_seconds,
        today,
        best,
        daly_interval(cost.seconds, cost.mtbf_seconds),
        gpus,
        None if kept_today is None else gpus * (1 - kept_today),
        gpus * (1 - efficiency(best, cost.seconds, cost.mtbf_seconds)),
    )


def interval_of(newest: Sequence[MeasuredCheckpoint]) -> float | None:
    """Between the newest checkpoints of one attempt, the time of saving included."""
    apart = [
        later.at - earlier.at
        for later, earlier in pairwise(newest)
        if later.attempt == earlier.attempt and later.at > earlier.at
    ]
    return median(apart) if apart else None
