"""Many members, each of which has its turn once in an interval: a few in each pass of a loop, instead of all in one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

PARTS = 200

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    def __init__(self, seconds: float, now: float) -> None:
        self._part_seconds = seconds / PARTS
        self._parts: list[dict[T, None]] = [{} for _ in range(PARTS)]
        self._part_of: dict[T, int] = {}
        self._added = 0
        self._next = 0
        self._last = now

    def add(self, member: T) -> None:
        self.remove(member)
        part = self._part_of[member] = self._added % PARTS
        self._parts[part][member] = None
        self._added += 1

    def remove(self, member: T) -> None:
        part = self._part_of.pop(member, None)
        if part is not None:
            del self._parts[part][member]

    def due(self, now: float) -> Iterator[T]:
        """Members whose turn it is; where that was missed for longer than the interval, each once."""
        parts = min(PARTS, int((now - self._last) / self._part_seconds))
        if parts <= 0:
            return
        self._last = now if parts == PARTS else self._last + parts * self._part_seconds
        for _ in range(parts):
            members = list(self._parts[self._next])
            self._next = (self._next + 1) % PARTS
            yield from members
