"""A plan over many runs: means, spread, and how many spares or which interval they call for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.figures.checkpoint_interval import best_interval
from understudy_controlplane.figures.outages import down_levels, rank_of
from understudy_controlplane.figures.plan_faults import draw, steady
from understudy_controlplane.figures.plan_run import LOSSES, Result, run
from understudy_controlplane.figures.plan_site import Faults, Site, Way
from understudy_controlplane.figures.reliability import (
    binomial_quantile,
    gpu_hours,
    money,
    mtbf,
    poisson_quantile,
    quantile_of_levels,
)
from understudy_controlplane.fleet.durations import DAY_SECONDS

INTERVAL_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SPARES_MAX = 4096

Progress = Callable[[str], None]
"""Takes how far it is."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Means over the runs. Shares are of the time of the gangs' nodes."""

    way: str
    ettr: float
    ettr_p5: float
    ettr_p95: float
    lost: Mapping[str, float]
    lost_gpu_hours: float
    lost_money: float | None
    interruptions: float
    interruptions_p5: float
    interruptions_p95: float
    by_cause: Mapping[str, float]
    by_path: Mapping[str, float]
    pages: float
    served: float  # share of the time in which no gang waits for a node
    out_share: Mapping[str, float]  # nodes out of service at the same time → share of the time
    out_p50: int
    out_p99: int


def outcomes(
    site: Site, ways: Sequence[Way], seeds: Iterable[int], price: float | None = None, progress: Progress | None = None
) -> list[Outcome]:
    """Each way on the same stories."""
    chosen = list(seeds)
    results: list[list[Result]] = []
    for number, seed in enumerate(chosen, 1):
        results.append(run(site, ways, draw(site, seed)))
        if progress is not None:
            progress(f"{', '.join(one.name for one in ways)}: run {number} of {len(chosen)}")
    return [_outcome(site, way, of_way, price) for way, of_way in zip(ways, zip(*results, strict=True), strict=True)]


def _outcome(site: Site, way: Way, results: Sequence[Result], price: float | None) -> Outcome:
    runs, ettrs = len(results), sorted(one.ettr for one in results)
    counts = sorted(float(one.interruptions.total()) for one in results)
    lost = dict.fromkeys(LOSSES, 0.0)
    for one in results:
        lost = {loss: seconds + one.lost[loss] for loss, seconds in lost.items()}
    whole = sum(one.node_seconds for one in results)
    hours = gpu_hours(site.gpus_per_node, sum(lost.values()) / runs)
    levels: dict[int, float] = {}
    for one in results:
        for level, seconds in down_levels(one.out, 0.0, site.seconds).items():
            levels[level] = levels.get(level, 0.0) + seconds
    return Outcome(
        way.name,
        sum(one.productive for one in results) / whole,
        rank_of(0.05, ettrs) or 0.0,
        rank_of(0.95, ettrs) or 0.0,
        {loss: seconds / whole for loss, seconds in lost.items() if seconds > 0},
        hours,
        None if price is None else money(hours, price),
        sum(counts) / runs,
        rank_of(0.05, counts) or 0.0,
        rank_of(0.95, counts) or 0.0,
        _means((one.interruptions for one in results), runs),
        _means((one.paths for one in results), runs),
        sum(one.pages for one in results) / runs,
        sum(one.served for one in results) / runs,
        {str(level): levels[level] / (runs * site.seconds) for level in sorted(levels)},
        quantile_of_levels(0.5, levels),
        quantile_of_levels(0.99, levels),
    )


def _means(counters: Iterable[Counter[str]], runs: int) -> dict[str, float]:
    whole: Counter[str] = Counter()
    for one in counters:
        whole.update(one)
    return {name: number / runs for name, number in whole.most_common()}


@dataclass(frozen=True, slots=True)
class PoolRow:
    spares: int  # of the pool
    served: float
    ettr: float
    idle_money: float | None  # of these spares


@dataclass(frozen=True, slots=True)
class PoolAdvice:
    """`spares`: the least with which no gang waits for a node for this share of the time; None: no pool suffices."""

    availability: float
    spares: int | None
    rows: Sequence[PoolRow]
    binomial: int  # for the nodes that fail within a day
    poisson: int  # for the mean number of nodes out of service


def spares_needed(
    site: Site,
    way: Way,
    share: float,
    seeds: Sequence[int],
    price: float | None = None,
    progress: Progress | None = None,
) -> PoolAdvice:
    rows: dict[int, PoolRow] = {}

    def suffices(pool: int) -> bool:
        if pool not in rows:
            found = outcomes(replace(site, pool=pool), [way], seeds)[0]
            idle = None if price is None else money(gpu_hours(pool * site.gpus_per_node, site.seconds), price)
            rows[pool] = PoolRow(pool, found.served, found.ettr, idle)
            if progress is not None:
                progress(f"{pool} spares: no gang waits in {100 * found.served:.2f} % of the time")
        return rows[pool].served >= share

    rate, repairs = steady(site.faults), site.faults.repairs
    repair_days = sum(repairs) / len(repairs) / DAY_SECONDS
    poisson = poisson_quantile(share, site.gang_nodes * rate * repair_days)
    enough, few = poisson, -1
    while not suffices(enough) and enough < SPARES_MAX:
        few, enough = enough, 2 * enough + 1
    while enough - few > 1 and rows[enough].served >= share:
        middle = (few + enough) // 2
        few, enough = (few, middle) if suffices(middle) else (middle, enough)
    suffices(max(0, enough - 1))
    return PoolAdvice(
        share,
        enough if rows[enough].served >= share else None,
        [rows[one] for one in sorted(rows)],
        binomial_quantile(share, site.gang_nodes, min(rate, 1.0)),
        poisson,
    )


def _mended_at_once(faults: Faults) -> Faults:
    trace = faults.trace
    at_once = trace and replace(trace, outages=[replace(one, end=one.begin + 1.0) for one in trace.outages])
    causes = [replace(one, repair=None) for one in faults.causes]
    return replace(faults, causes=causes, repairs=[1.0], trace=at_once)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    interval: float
    ettr: float


@dataclass(frozen=True, slots=True)
class IntervalAdvice:
    """`best`: by the formula. `mtbf`: between the interruptions of a gang in the runs."""

    best: float
    mtbf: float
    cost: float
    rows: Sequence[IntervalRow]


def interval_wanted(
    site: Site, way: Way, seeds: Sequence[int], progress: Progress | None = None
) -> IntervalAdvice | None:
    """Advice for the nearest tier, if spares are never short. None: no gang was interrupted, any interval is good."""
    nearest, site = site.tiers[0], replace(site, faults=_mended_at_once(site.faults))
    once = outcomes(site, [way], seeds)[0]
    between = mtbf(site.seconds * len(site.gangs), 1) if once.interruptions else None
    if between is None:
        return None
    between /= once.interruptions
    best = best_interval(nearest.cost, between)
    rows = []
    for interval in sorted({*(best * factor for factor in INTERVAL_FACTORS), nearest.interval}):
        tiers = (replace(nearest, interval=interval), *site.tiers[1:])
        rows.append(IntervalRow(interval, outcomes(replace(site, tiers=tiers), [way], seeds)[0].ettr))
        if progress is not None:
            progress(f"a checkpoint every {interval:.0f} s: ETTR {rows[-1].ettr:.4f}")
    return IntervalAdvice(best, between, nearest.cost, rows)
