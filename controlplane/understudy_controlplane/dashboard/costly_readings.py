"""What takes long to read, as what became of a long incident or the checkpoints of a long job: the longer a reading
takes, the seldomer it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fastapi import Response

from understudy_controlplane.clock import Clock

APART_FACTOR = 20.0
"""Two readings begin that many times as far apart as one takes."""
KEPT_MAX = 32

Value = TypeVar("Value")


class CostlyReadings(Generic[Value]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read: dict[int, tuple[float, Value]] = {}  # number → when it is read again, by the monotonic clock

    def of(self, number: int, read: Callable[[int], Value]) -> Value:
        """A refusal is not kept."""
        begun, known = self._clock.monotonic(), self._read.get(number)
        if known is not None and begun < known[0]:
            return known[1]
        found = read(number)
        if isinstance(found, Response):
            return found
        self._read.pop(number, None)
        self._read[number] = (begun + APART_FACTOR * (self._clock.monotonic() - begun), found)
        for oldest in [*self._read][:-KEPT_MAX]:
            self._read.pop(oldest, None)
        return found
