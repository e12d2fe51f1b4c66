"""Draws what happens to a fleet, by rates or as a trace repeats it. Pure: a seed is a story.

What happens to the gangs' first nodes depends on the seed alone, so that ways to recover and numbers of spares can be
compared on the same story.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from understudy_controlplane.figures.plan_site import Effect, Fault, FaultCause, Faults, Happens, Site
from understudy_controlplane.fleet.durations import DAY_SECONDS


def draw(site: Site, seed: int) -> Happens:
    def random(of: str) -> Random:
        return Random(f"{seed} {of}")  # noqa: S311 (no secret)

    faults: list[Fault] = []
    for cause in site.faults.causes:
        faults += _at_random(site, cause, range(site.gang_nodes), random(cause.name))
        for spare in range(site.gang_nodes, site.nodes):
            faults += _at_random(
                site, replace(cause, nodes=1), range(spare, spare + 1), random(f"{cause.name} {spare}")
            )
    if site.faults.trace is not None:
        faults += _replayed(site, random("trace"))
    away = [(at, at + site.outage_seconds) for at in _moments(random("away"), site.outage_days, site.seconds)]
    return Happens(sorted(faults, key=lambda one: one.at), away)


def _moments(random: Random, mean_days: float, until: float) -> Iterator[float]:
    at = 0.0
    while math.isfinite(mean_days):
        at += random.expovariate(1 / (mean_days * DAY_SECONDS))
        if at >= until:
            return
        yield at


def _at_random(site: Site, cause: FaultCause, nodes: range, random: Random) -> Iterator[Fault]:
    per_day = cause.per_1000_node_days / 1000 * len(nodes) / cause.nodes
    if per_day <= 0:
        return
    for at in _moments(random, 1 / per_day, site.seconds):
        first = nodes.start + random.randrange(len(nodes)) // cause.nodes * cause.nodes
        repair = random.choice(site.faults.repairs) if cause.repair is None else cause.repair
        yield _fault(site, random, at, range(first, min(first + cause.nodes, nodes.stop)), cause, repair)


def _replayed(site: Site, random: Random) -> Iterator[Fault]:
    """Each part of the fleet that is as large as the trace gets a stretch of its own. It wraps around at its end."""
    trace = site.faults.trace
    assert trace is not None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(one.node for one in trace.outages))}
    cause = FaultCause("trace", trace.effect, 0.0)
    for part in range(0, site.nodes, trace.nodes):
        offset, shift = random.uniform(0, trace.seconds), random.randrange(trace.nodes)
        for one in trace.outages:
            node = part + (numbers[one.node] + shift) % trace.nodes
            repair = (trace.seconds if one.end is None else one.end) - one.begin
            at = (one.begin - offset) % trace.seconds
            while at < site.seconds and node < site.nodes:
                yield _fault(site, random, at, range(node, node + 1), cause, repair)
                at += trace.seconds


def _fault(site: Site, random: Random, at: float, nodes: range, cause: FaultCause, repair: float) -> Fault:
    person = random.expovariate(1 / site.person) if site.person > 0 else 0.0
    lasts = random.expovariate(1 / site.faults.slow_seconds) if cause.effect is Effect.SLOW else 0.0
    return Fault(at, nodes, cause, repair, person, lasts)


def expected(site: Site) -> float:
    """Mean number of faults in a run."""
    rate = sum(one.per_1000_node_days for one in site.faults.causes) / 1000
    trace = site.faults.trace
    if trace is not None:
        rate += len(trace.outages) / trace.nodes / (trace.seconds / DAY_SECONDS)
    return site.nodes * site.days * rate


def steady(faults: Faults) -> float:
    """Faults of a node in a day that take it out of service."""
    return sum(one.per_1000_node_days for one in faults.causes if one.effect in (Effect.DEAD, Effect.BROKEN)) / 1000 + (
        len(faults.trace.outages) / faults.trace.nodes / (faults.trace.seconds / DAY_SECONDS) if faults.trace else 0.0
    )
