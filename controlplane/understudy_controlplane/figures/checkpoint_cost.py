"""What a job's checkpoints cost, how often it saves, and what another interval would cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from understudy_controlplane.figures.checkpoint_interval import FailureRate, best_interval, daly_interval, efficiency
from understudy_controlplane.figures.tier_cadence import TierCost, cadences, class_rates
from understudy_controlplane.fleet.job import MeasuredCheckpoint
from understudy_controlplane.fleet.saving import FailureClass, SaveCost
from understudy_wire.facts import Tier


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


@dataclass(frozen=True, slots=True)
class Exposure:
    """Exposure of a gang to what makes it restore a checkpoint."""

    rate: FailureRate
    nodes: int
    counts: Mapping[FailureClass, int] = field(default_factory=dict)  # of the failures of `rate`
    copy_bytes_per_second: float = 200e6  # of each node


def cost_of(newest: Sequence[MeasuredCheckpoint], exposure: Exposure) -> SaveCost:
    """Cost of the median of the newest: a single slow one says little. On several tiers, what the nearest one with
    files costs.
    """
    of_tiers = _of_tiers(newest, exposure)
    found = cadences(of_tiers, class_rates(exposure.rate, exposure.counts, exposure.nodes))
    of_files = [one for one in found if one.tier is not Tier.PEER]
    memory = next((one.interval for one in found if one.tier is Tier.PEER), None)
    base = of_files[0].tier if len(found) > 1 and of_files else None
    of_training = [one for one in newest if not one.is_copy and one.tier is not Tier.PEER]
    own = [one for one in of_training if base is None or _counts_as(one) is base]
    blocked = [one.blocked_seconds for one in own if one.blocked_seconds]
    written = [one.write_seconds for one in own if one.write_seconds]
    write, mtbf = median(written) if written else 0.0, exposure.rate.mtbf(exposure.nodes)
    seconds = median(blocked) if blocked else write or None
    if base is not None:
        return SaveCost(seconds, write, mtbf, of_files[0].interval, bool(blocked), tuple(found), memory)
    best = best_interval(seconds, mtbf) if seconds else None
    return SaveCost(seconds, write, mtbf, best, bool(blocked), best_memory_seconds=memory)


def _of_tiers(newest: Sequence[MeasuredCheckpoint], exposure: Exposure) -> dict[Tier, TierCost]:
    """Those of which it is known."""
    found: dict[Tier, TierCost] = {}
    for tier in Tier:
        of_tier = [one for one in newest if _counts_as(one) is tier]
        own = [one for one in of_tier if not one.is_copy]
        written = [one.write_seconds for one in own if one.write_seconds]
        blocked = [one.blocked_seconds for one in own if one.blocked_seconds]
        if written or blocked:
            write = median(written or blocked)
            found[tier] = TierCost(median(blocked or written), write)
        elif of_tier:
            size = median(one.size_bytes for one in of_tier)
            found[tier] = TierCost(0.0, size / max(exposure.nodes, 1) / exposure.copy_bytes_per_second)
    return found


def _counts_as(one: MeasuredCheckpoint) -> Tier:
    return Tier.SHARED if one.tier is Tier.UNKNOWN else one.tier


def report(newest: Sequence[MeasuredCheckpoint], cost: SaveCost) -> IntervalReport | None:
    """`newest`: newest first. None: no checkpoint with files was measured."""
    newest = [one for one in newest if one.tier is not Tier.PEER]
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
    """Interval of the newest checkpoints of one attempt, the time of saving included."""
    apart = [
        later.at - earlier.at
        for later, earlier in pairwise(newest)
        if later.attempt == earlier.attempt and later.at > earlier.at
    ]
    return median(apart) if apart else None
