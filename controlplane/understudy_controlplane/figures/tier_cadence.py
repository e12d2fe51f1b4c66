"""How often to save on each tier: by what that costs, and by the failures after which it is the nearest one left. Pure.

Seconds throughout. A failure takes the nearer tiers with it: that of a process takes none, that of a node its disk,
that of a rack the memory of its nodes, and that of the site all but an object store elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_controlplane.figures.checkpoint_interval import FailureRate, best_interval
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.interruption_cause import FABRIC, HANG, PROGRAM, SITE, cause_of
from understudy_controlplane.fleet.saving import FailureClass, TierCadence
from understudy_wire.facts import Tier

OUTLIVES: Mapping[Tier, frozenset[FailureClass]] = {
    Tier.PEER: frozenset({FailureClass.PROCESS, FailureClass.NODE}),
    Tier.LOCAL: frozenset({FailureClass.PROCESS}),
    Tier.SHARED: frozenset({FailureClass.PROCESS, FailureClass.NODE, FailureClass.RACK}),
    Tier.OBJECT: frozenset(FailureClass),
}
"""Nearest first."""

PRIOR_SHARES: Mapping[FailureClass, float] = {
    FailureClass.PROCESS: 54 / 419,  # software bugs
    FailureClass.RACK: 35 / 419,  # switches and cables
    FailureClass.NODE: 330 / 419,
}
"""Shares of failures for a cluster with little history of its own: Llama 3, table 5 (arXiv 2407.21783)."""

PRIOR_SITE_PER_DAY = 0.5 / 54
"""None was seen there in 54 days: as if half of one had been."""

BACKGROUND_SHARE = 0.02
"""What a copy in the background costs, of the time that it takes: it holds nothing up, but uses network and disks."""


@dataclass(frozen=True, slots=True)
class TierCost:
    held_up: float  # of the training; 0: it is written in the background
    write: float  # until it is there

    @property
    def seconds(self) -> float:
        return max(self.held_up, BACKGROUND_SHARE * self.write)


def class_of(rule: str) -> FailureClass:
    """Class of the rule that opened an incident."""
    cause = cause_of(rule)
    if cause in (PROGRAM, HANG):
        return FailureClass.PROCESS
    return FailureClass.RACK if cause in (SITE, FABRIC) else FailureClass.NODE


def class_rates(rate: FailureRate, counts: Mapping[FailureClass, int], nodes: int) -> dict[FailureClass, float]:
    """Failures of a gang on so many nodes in a second, by class. `counts`: of those that `rate` counts."""
    total = rate.failures + 1.0
    of_gang = 1.0 / rate.mtbf(nodes)
    found = {one: of_gang * (counts.get(one, 0) + share) / total for one, share in PRIOR_SHARES.items()}
    return {**found, FailureClass.SITE: PRIOR_SITE_PER_DAY / DAY_SECONDS}


def cadences(costs: Mapping[Tier, TierCost], rates: Mapping[FailureClass, float]) -> list[TierCadence]:
    """Cadences of the tiers on which a gang saves, nearest first. A tier that answers no failure which a nearer one
    does not has none. What outlives none of them is answered by the furthest. If a further tier would be best saved
    more often than a nearer one, both are saved together, for the failures of both.
    """
    used = [tier for tier in OUTLIVES if tier in costs and costs[tier].seconds > 0]
    answers: dict[Tier, list[FailureClass]] = {tier: [] for tier in used}
    for failure in FailureClass:
        if used:
            answers[next((tier for tier in used if failure in OUTLIVES[tier]), used[-1])].append(failure)
    levels: list[_Level] = []
    for tier, answered in answers.items():
        level = _Level((tier,), costs[tier].seconds, costs[tier].write, sum(rates[one] for one in answered))
        if level.often > 0:
            while levels and level.best <= levels[-1].best:
                level = levels.pop().together_with(level)
            levels.append(level)
    found: list[TierCadence] = []
    interval = 0.0
    for level in levels:
        times = max(round(level.best / interval), math.ceil(level.write / interval)) if interval else 1
        interval = interval * times or level.best
        for tier in level.tiers:
            often = sum(rates[one] for one in answers[tier])
            found.append(TierCadence(tier, tuple(answers[tier]), costs[tier].seconds, 1 / often, interval))
    return found


@dataclass(frozen=True, slots=True)
class _Level:
    """Tiers that are saved together."""

    tiers: tuple[Tier, ...]
    cost: float
    write: float
    often: float  # failures in a second

    @property
    def best(self) -> float:
        return max(best_interval(self.cost, 1 / self.often), self.write)

    def together_with(self, further: _Level) -> _Level:
        write = max(self.write, further.write)
        return _Level(self.tiers + further.tiers, self.cost + further.cost, write, self.often + further.often)
