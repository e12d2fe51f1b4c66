"""What NCCL's collectives took in a gang, by communicator, in its last minutes.

Each rank names the time of its own: it waits for the others too, so the shortest of all ranks counts, and nothing is
known of a minute until all have reported it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy_controlplane.fleet.steps import NO_COMMUNICATORS, Communicators, CommunicatorTimes, TimedKind
from understudy_wire.ranks import KINDS_MAX, CollectiveKind, CollectiveTimes

MINUTE_SECONDS = 60.0
MINUTES_KEPT = 4
"""The newest of which any rank has reported is not complete yet."""
COMMUNICATORS_MAX = 16_384
"""More of a gang are left out, and more than its ranks can name within the minutes that are kept."""
KINDS_OF_COMMUNICATOR_MAX = 6


@dataclass(slots=True)
class _Minute:
    ranks: set[int] = field(default_factory=set)  # of the gang, that have reported
    seconds: float = float("inf")


@dataclass(slots=True)
class _Seen:
    size: int
    nodes: int
    purpose: str
    kinds: dict[tuple[str, int], dict[int, _Minute]] = field(default_factory=dict)


class CommunicatorBuffer:
    def __init__(self, world_size: int) -> None:
        self.shown: Communicators = NO_COMMUNICATORS
        """Minutes that are over."""
        self._world_size = world_size
        self._most = min(COMMUNICATORS_MAX, KINDS_MAX * MINUTES_KEPT * world_size)
        self._newest = -1
        self._seen: dict[str, _Seen] = {}

    def add(self, rank: int, times: CollectiveTimes, now: float) -> None:
        if abs(times.minute - now / MINUTE_SECONDS) > MINUTES_KEPT:  # the clock of its node is wrong
            return
        if times.minute > self._newest:
            self.shown = Communicators(tuple(self._over()), now)
            self._newest = times.minute
            self._forget()
        if times.minute <= self._newest - MINUTES_KEPT:
            return
        for one in times.kinds:
            self._add(rank, times.minute, one)

    def _add(self, rank: int, minute: int, one: CollectiveKind) -> None:
        seen = self._seen.get(one.communicator)
        if seen is None:
            if one.ranks > self._world_size or len(self._seen) >= self._most:
                return
            seen = self._seen[one.communicator] = _Seen(one.ranks, one.nodes, one.purpose)
        key = (one.operation, one.size_bytes)
        if key not in seen.kinds and len(seen.kinds) >= KINDS_OF_COMMUNICATOR_MAX:
            return
        known = seen.kinds.setdefault(key, {}).setdefault(minute, _Minute())
        known.ranks.add(rank)
        known.seconds = min(known.seconds, one.seconds)

    def _over(self) -> list[CommunicatorTimes]:
        found = []
        for name, seen in self._seen.items():
            kinds: dict[TimedKind, tuple[float, ...]] = {}
            ranks: set[int] = set()
            for (operation, size), minutes in seen.kinds.items():
                whole = [one for _, one in sorted(minutes.items()) if len(one.ranks) == seen.size]
                if whole:
                    kinds[TimedKind(operation, size)] = tuple(one.seconds for one in whole)
                    ranks |= whole[-1].ranks
            if kinds and len(ranks) == seen.size:  # else other ranks have a communicator of this name
                found.append(CommunicatorTimes(name, seen.purpose, tuple(sorted(ranks)), seen.nodes, kinds))
        return found

    def _forget(self) -> None:
        oldest = self._newest - MINUTES_KEPT
        for name, seen in [*self._seen.items()]:
            for key, minutes in [*seen.kinds.items()]:
                for minute in [one for one in minutes if one <= oldest]:
                    del minutes[minute]
                if not minutes:
                    del seen.kinds[key]
            if not seen.kinds:
                del self._seen[name]
