"""What a plan begins with: `published.toml`, and what the command line, or a site's own history, changes of it."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.figures.plan_faults import steady
from understudy_controlplane.figures.plan_site import Effect, FaultCause, Faults, SavedTier, Site, Trace, Way
from understudy_controlplane.figures.reliability import poisson_quantile
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_wire.facts import Tier

UNDERSTUDY_RUN, UNDERSTUDY_POOL = "understudy run", "Understudy's pool"
INSIDE_SHARE = 0.5
"""Share of the spares that `understudy run` keeps in the allocations; the others are in the pool."""

SPARES_SHARE = 0.99
"""Share of the time for which the spares suffice if `--spares` is not given, by the formula for faults one by one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of the command line. None: as published."""

    gpus: int
    gangs: int
    gpus_per_node: int
    days: float
    spares: int | None
    inside: int | None
    faults: str
    per_1000_node_days: float | None
    rack: tuple[float, int] | None  # share of the faults, and how many nodes fail together
    repair: float | None
    cleared: float | None  # share of the faults
    interval: float
    save_cost: float | None
    shared_interval: float | None
    restore: float | None
    start: float | None
    person: float | None
    false_alarms: float | None


@cache
def published() -> Mapping[str, Any]:
    return tomllib.loads((resources.files(__package__) / "published.toml").read_text())


@cache
def outages_of(name: str) -> Sequence[Outage]:
    with (resources.files(__package__) / name).open() as file:
        return [
            Outage(row["node"], float(row["begin_days"]) * DAY_SECONDS, float(row["end_days"]) * DAY_SECONDS)
            for row in csv.DictReader(file)
        ]


def ways() -> list[Way]:
    return [
        Way(
            one["name"],
            {Effect(effect): float(seconds) for effect, seconds in one["detect"].items()},
            one.get("swap_inside", 0.0),
            one["swap_pool"],
            one.get("uses_inside", False),
            one.get("warm", False),
            frozenset(map(Effect, one.get("by_person", ()))),
            one.get("needs_service", False),
            one.get("false_alarms", False),
        )
        for one in published()["ways"]
    ]


def way(name: str) -> Way:
    return next(one for one in ways() if one.name == name)


def site_of(asked: Asked, faults: Faults | None = None, *, own_repairs: bool = False) -> Site:
    """`faults`: the site's own, which the options of the command line have not changed yet; None: the published ones of
    `asked.faults`.
    """
    known = published()
    nodes = math.ceil(asked.gpus / asked.gpus_per_node)
    faults = _changed(faults or faults_of(asked.faults), asked, own_repairs)
    down_days = steady(faults) * sum(faults.repairs) / len(faults.repairs) / DAY_SECONDS
    usual = poisson_quantile(SPARES_SHARE, nodes * asked.gangs * down_days)
    spares = usual if asked.spares is None else asked.spares
    inside = int(INSIDE_SHARE * spares / asked.gangs) if asked.inside is None else asked.inside
    return Site(
        gangs=(nodes,) * asked.gangs,
        pool=max(0, spares - inside * asked.gangs),
        inside=inside,
        days=asked.days,
        tiers=_tiers(asked),
        faults=faults,
        start_cold=_at(known["start"]["cold"], asked.gpus) if asked.start is None else asked.start,
        start_warm=_at(known["start"]["warm"], asked.gpus) if asked.start is None else asked.start,
        gpus_per_node=asked.gpus_per_node,
        person=known["person"]["seconds"] if asked.person is None else asked.person,
        outage_days=known["control_plane"]["outage_days"],
        outage_seconds=known["control_plane"]["outage_seconds"],
    )


def as_used_by(one: Way, site: Site) -> Site:
    """The same number of spares, where this way keeps them. NVRx has no pool; others than it and `understudy run` have
    nothing else.
    """
    gangs = len(site.gangs)
    spares = site.pool + site.inside * gangs
    if not one.uses_inside:
        return replace(site, pool=spares, inside=0)
    if one.name != UNDERSTUDY_RUN:
        return replace(site, pool=spares % gangs, inside=spares // gangs)
    return site


def _tiers(asked: Asked) -> tuple[SavedTier, ...]:
    known = published()
    cost = known["save"]["seconds"] if asked.save_cost is None else asked.save_cost
    restore = known["restore"]["seconds"] if asked.restore is None else asked.restore
    if asked.shared_interval is None:
        return (SavedTier(Tier.SHARED, asked.interval, cost, 0.0, restore),)
    near = SavedTier(
        Tier.PEER, asked.interval, known["save"]["memory_seconds"], 0.0, known["restore"]["memory_seconds"]
    )
    return near, SavedTier(Tier.SHARED, asked.shared_interval, cost, 0.0, restore)


def faults_of(profile: str) -> Faults:
    known, one = published(), published()["profiles"][profile]
    repairs = [o.end - o.begin for o in outages_of(known["repair"]["trace"]) if o.end is not None]
    slow = known["slow"]
    alarm = known["false_alarms"]
    causes = [
        FaultCause("False alarm", Effect.FALSE_ALARM, alarm["per_1000_node_days"], 1, alarm["validation_seconds"])
    ]
    trace = None
    if "trace" in one:
        trace = Trace(outages_of(one["trace"]), one["nodes"], one["days"] * DAY_SECONDS)
    for key, count in one.get("counts", {}).items():
        effect, _, name = key.partition(".")
        causes.append(FaultCause(name, Effect(effect), 1000 * count / one["node_days"]))
    return Faults(causes, repairs, trace, slow["pace"], slow["seconds"])


def _changed(faults: Faults, asked: Asked, own_repairs: bool) -> Faults:
    causes = list(faults.causes)
    real = [one for one in causes if one.effect is not Effect.FALSE_ALARM]
    replayed = 1000 * steady(replace(faults, causes=()))
    rate = replayed + sum(one.per_1000_node_days for one in real)
    if asked.per_1000_node_days is not None and rate and not replayed:
        factor = asked.per_1000_node_days / rate
        real = [replace(one, per_1000_node_days=one.per_1000_node_days * factor) for one in real]
        rate = asked.per_1000_node_days
    if asked.rack is not None:
        share, nodes = asked.rack
        real.append(FaultCause("Rack or switch", Effect.DEAD, rate * share * nodes, nodes))
    alarms = [one for one in causes if one.effect is Effect.FALSE_ALARM]
    if asked.false_alarms is not None:
        alarms = [replace(one, per_1000_node_days=asked.false_alarms) for one in alarms]
    repairs, trace = faults.repairs, faults.trace
    if asked.repair is not None:
        factor = asked.repair * len(repairs) / sum(repairs)
        repairs = [one * factor for one in repairs]
        trace = trace and replace(trace, outages=[_scaled(one, factor) for one in trace.outages])
    usual = 0.0 if own_repairs else published()["cleared"]["share"]  # a site's own have those of the ladder
    cleared = usual if asked.cleared is None else asked.cleared
    return replace(faults, causes=(*real, *alarms), repairs=_with_cleared(repairs, cleared), trace=trace)


def _scaled(one: Outage, factor: float) -> Outage:
    return one if one.end is None else replace(one, end=one.begin + factor * (one.end - one.begin))


def _with_cleared(repairs: Sequence[float], share: float) -> list[float]:
    """Repairs of people, each as likely as the others, and those of the repair ladder beside them."""
    short = round(len(repairs) * share / (1 - share)) if share < 1 else 0
    return [*(repairs if share < 1 else ()), *[float(published()["cleared"]["seconds"])] * max(short, share >= 1)]


def _at(points: Sequence[tuple[float, float]], gpus: int) -> float:
    """Seconds for so many GPUs, by their logarithm between two points; outside of them as at the nearest one."""
    before = points[0]
    for after in points:
        if gpus <= after[0]:
            if after[0] == before[0]:
                return after[1]
            share = math.log(gpus / before[0]) / math.log(after[0] / before[0])
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]
