"""One run of a plan: gangs work, fail and recover, and every second of each has one cause. Pure.

A gang is a few numbers: the work that is done, that of the last checkpoint on each tier, and since when it runs. It
stops at a fault, has its seats after detection and swap, and works again after start and restore. A fault in between
begins all that again. A gang that finds too few spares waits until enough nodes come back.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count

from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.figures.plan_site import LOSES_NODE, Effect, Fault, Happens, Site, Way
from understudy_controlplane.figures.tier_cadence import OUTLIVES
from understudy_controlplane.fleet.history import Loss
from understudy_controlplane.fleet.saving import FailureClass

SAVE = "save"
LOSSES = (*(loss.value for loss in Loss), SAVE)
"""`queue`: in a plan the wait for a node; `decide`: for a person or the control plane."""

INSIDE, POOL, IN_PLACE, WAITED = "spare of the allocation", "spare of the pool", "same nodes", "waited for a node"


@dataclass(slots=True)
class Result:
    """`lost`: node-seconds by cause. `out`: nodes out of service."""

    node_seconds: float = 0.0
    productive: float = 0.0
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))
    interruptions: Counter[str] = field(default_factory=Counter)  # by cause
    paths: Counter[str] = field(default_factory=Counter)
    pages: int = 0
    out: list[Outage] = field(default_factory=list)

    @property
    def ettr(self) -> float:
        return self.productive / self.node_seconds

    @property
    def served(self) -> float:
        """Share of the time in which no gang waits for a node."""
        return 1 - self.lost[Loss.QUEUE] / self.node_seconds


@dataclass(slots=True)
class _Gang:
    size: int
    saved: list[float]  # work of the last checkpoint on each tier
    missing: int = 0
    spares: int = 0  # in its allocation
    work: float = 0.0
    base: float = 0.0  # work at the last restart
    since: float = 0.0
    runs: bool = True
    waits: bool = False
    slow: set[int] = field(default_factory=set)
    restore: float = 0.0
    generation: int = 0
    phases: list[tuple[float, Loss]] = field(default_factory=list)  # until when what is going on; from `since`


class _Kind(IntEnum):
    """Things that happen, in their order within one moment."""

    RETURN = 0
    SEATS = 1
    UP = 2
    FOUND_SLOW = 3
    SLOW_ENDS = 4
    FAULT = 5


class Run:
    """`site` and `way` on what `happens`."""

    def __init__(self, site: Site, way: Way, happens: Happens) -> None:
        self._site = site
        self._way = way
        self._happens = happens
        inside = site.inside if way.uses_inside else 0
        self._inside = inside
        self._gangs = [_Gang(size, [0.0] * len(site.tiers), spares=inside) for size in site.gangs]
        seats = [number for number, size in enumerate(site.gangs) for _ in range(size)]
        self._seat = dict(enumerate(seats))  # node → gang that works on it
        self._free = list(range(site.nodes - 1, site.gang_nodes - 1, -1))  # spares, the next one last
        self._kept: list[list[int]] = []
        for _ in self._gangs:
            self._kept.append([self._free.pop() for _ in range(inside)])
        self._out: set[int] = set()
        self._events: list[tuple[float, int, int, int, int, Fault | None]] = []
        self._order = count()
        self.result = Result()

    def done(self) -> Result:
        for one in self._happens.faults:
            self._add(one.at, _Kind.FAULT, 0, 0, one)
        while self._events:
            at, kind, _, subject, generation, fault = heapq.heappop(self._events)
            if at >= self._site.seconds:
                break
            self._happen(at, _Kind(kind), subject, generation, fault)
        for gang in self._gangs:
            self._settle(gang, self._site.seconds)
            self.result.node_seconds += gang.size * self._site.seconds
        return self.result

    def _add(self, at: float, kind: _Kind, subject: int, generation: int = 0, fault: Fault | None = None) -> None:
        heapq.heappush(self._events, (at, kind, next(self._order), subject, generation, fault))

    def _happen(self, at: float, kind: _Kind, subject: int, generation: int, fault: Fault | None) -> None:
        if kind is _Kind.RETURN:
            self._return(at, subject)
        elif kind in (_Kind.SEATS, _Kind.UP):
            gang = self._gangs[subject]
            if gang.generation == generation:
                (self._seats if kind is _Kind.SEATS else self._up)(at, subject)
        elif fault is not None:
            (self._strike if kind is _Kind.FAULT else self._slow_node)(at, fault)

    # -- faults

    def _strike(self, at: float, fault: Fault) -> None:
        """A fault of nodes that are out of service already is none."""
        effect, way = fault.cause.effect, self._way
        nodes = [node for node in fault.nodes if node not in self._out]
        struck = sorted({self._seat[node] for node in nodes if node in self._seat})
        if effect is Effect.FALSE_ALARM and not (way.false_alarms and struck):
            return
        if effect is Effect.SLOW:
            for node in nodes:
                self._begin_slow(at, node, fault)
            return
        if effect in LOSES_NODE:
            found = 0.0 if effect is Effect.FALSE_ALARM else way.detect[effect]
            for node in nodes:
                self._lose(at, node, found + fault.repair)
        for number in struck:
            self._stop(at, number, fault)

    def _begin_slow(self, at: float, node: int, fault: Fault) -> None:
        if node not in self._seat:
            return
        gang, found = self._gangs[self._seat[node]], self._way.detect[Effect.SLOW]
        self._settle(gang, at)
        gang.slow.add(node)
        kind = _Kind.FOUND_SLOW if found < fault.lasts else _Kind.SLOW_ENDS
        self._add(at + min(found, fault.lasts), kind, 0, 0, replace(fault, nodes=range(node, node + 1)))

    def _slow_node(self, at: float, fault: Fault) -> None:
        """A node that was slow is found, or is slow no longer."""
        node = fault.nodes.start
        number = self._seat.get(node)
        if number is None or node not in self._gangs[number].slow:
            return
        self._settle(self._gangs[number], at)
        self._gangs[number].slow.discard(node)
        if self._way.detect[Effect.SLOW] < fault.lasts:
            self._lose(at, node, fault.repair)
            self._stop(at, number, fault)

    def _lose(self, at: float, node: int, seconds: float) -> None:
        self._out.add(node)
        self.result.out.append(Outage(str(node), at, at + seconds))
        self._add(at + seconds, _Kind.RETURN, node)
        number = self._seat.pop(node, None)
        if number is not None:
            self._gangs[number].missing += 1
            self._gangs[number].slow.discard(node)
        elif node in self._free:
            self._free.remove(node)
        else:
            for kept in self._kept:
                if node in kept:
                    kept.remove(node)

    def _return(self, at: float, node: int) -> None:
        self._out.discard(node)
        self._free.append(node)
        for number, gang in enumerate(self._gangs):
            if gang.waits and len(self._kept[number]) + len(self._free) >= gang.missing:
                self._settle(gang, at)
                gang.waits = False
                self._restart(at, number)

    # -- recovery

    def _stop(self, at: float, number: int, fault: Fault) -> None:
        gang, way, effect = self._gangs[number], self._way, fault.cause.effect
        self._settle(gang, at)
        if gang.runs:
            self._roll_back(gang, fault.cause.tier_class)
        self.result.interruptions[fault.cause.name] += 1
        gang.runs = False
        gang.generation += 1
        if gang.waits:
            return
        found = at + (0.0 if effect in (Effect.SLOW, Effect.FALSE_ALARM) else way.detect[effect])
        seats = self._decided(found)
        if effect in way.by_person:
            self.result.pages += 1
            seats = max(seats, found + fault.person)
        gang.phases = [(found, Loss.DETECT), (seats, Loss.DECIDE)]
        self._add(seats, _Kind.SEATS, number, gang.generation)

    def _decided(self, found: float) -> float:
        """An outage of the control plane delays what needs it."""
        if self._way.needs_service:
            return next((end for begin, end in self._happens.away if begin <= found < end), found)
        return found

    def _roll_back(self, gang: _Gang, failure: FailureClass) -> None:
        tiers = self._site.tiers
        left = [n for n, one in enumerate(tiers) if failure in OUTLIVES[one.tier]] or [len(tiers) - 1]
        chosen = max(left, key=lambda number: gang.saved[number])
        lost = gang.work - gang.saved[chosen]
        self.result.productive -= lost * gang.size
        self.result.lost[Loss.RECOMPUTE] += lost * gang.size
        gang.work = gang.base = gang.saved[chosen]
        gang.saved = [min(one, gang.work) for one in gang.saved]
        gang.restore = tiers[chosen].restore

    def _seats(self, at: float, number: int) -> None:
        gang = self._gangs[number]
        self._settle(gang, at)
        if gang.missing > len(self._kept[number]) + len(self._free):
            gang.waits = True
            gang.phases = [(math.inf, Loss.QUEUE)]
            self.result.paths[WAITED] += 1
            self.result.pages += 1
        else:
            self._restart(at, number)

    def _restart(self, at: float, number: int) -> None:
        """Spares of the allocation are taken first. A gang that is requeued gets those that it had at first again."""
        gang, way, site, kept = self._gangs[number], self._way, self._site, self._kept[number]
        inside = self._inside > 0 and len(kept) >= gang.missing
        path = (INSIDE if inside else POOL) if gang.missing else IN_PLACE
        self.result.paths[path] += 1
        for _ in range(gang.missing):
            self._seat[(kept or self._free).pop()] = number
        gang.missing = 0
        while not inside and len(kept) < self._inside and self._free:
            kept.append(self._free.pop())
        stays = inside or (path is IN_PLACE and way.uses_inside)
        swapped = at + (way.swap_inside if stays else way.swap_pool)
        started = swapped + (site.start_warm if stays and way.warm else site.start_cold)
        up = started + gang.restore
        gang.phases = [(swapped, Loss.SWAP), (started, Loss.START), (up, Loss.RESTORE)]
        self._add(up, _Kind.UP, number, gang.generation)

    def _up(self, at: float, number: int) -> None:
        gang = self._gangs[number]
        self._settle(gang, at)
        gang.runs, gang.phases = True, []

    # -- hours

    def _settle(self, gang: _Gang, at: float) -> None:
        """Counts the time since it was counted last."""
        if gang.runs:
            self._settle_work(gang, at - gang.since)
        else:
            begin = gang.since
            for until, loss in gang.phases:
                end = min(until, at)
                if end > begin:
                    self.result.lost[loss] += (end - begin) * gang.size
                    begin = end
        gang.since = at

    def _settle_work(self, gang: _Gang, seconds: float) -> None:
        tiers = self._site.tiers
        saving = sum(one.cost / one.interval for one in tiers)
        slower = 1 / self._site.faults.slow_pace - 1 if gang.slow else 0.0
        work = seconds / (1 + slower + saving)
        self.result.productive += work * gang.size
        self.result.lost[Loss.SLOW] += work * slower * gang.size
        self.result.lost[SAVE] += work * saving * gang.size
        gang.work += work
        for number, one in enumerate(tiers):
            times = math.floor((gang.work - gang.base - one.write) / one.interval + 1e-9)
            if times > 0:
                gang.saved[number] = gang.base + times * one.interval


def run(site: Site, ways: Sequence[Way], happens: Happens) -> list[Result]:
    """Each way on the same story."""
    return [Run(site, way, happens).done() for way in ways]
