"""The only reader of time in the control plane; other modules receive the time as a value."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from typing import Protocol

JUMP_SECONDS = 2.0
"""A clock that is set by less makes no node silent: that takes four seconds."""


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the Unix epoch. An administrator or a time service may set this clock."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. This clock is never set."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


CALENDAR_ENDS_AT = 253_402_128_000.0
"""The last days of the year 9999, in any time zone."""


def moment(at: float, zone: tzinfo = UTC) -> datetime:
    """A time for people: the nearest that a calendar has, from 1970 on. Records of Slurm may hold any number."""
    return datetime.fromtimestamp(min(max(at, 0.0), CALENDAR_ENDS_AT), zone)


class ClockWatch:
    """Notices that the wall clock was set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = self._read()

    def jump_seconds(self) -> float:
        """Seconds by which the clock was set since the last call; negative: back. 0: it was not set."""
        before, self._ahead = self._ahead, self._read()
        jump = self._ahead - before
        return jump if abs(jump) >= JUMP_SECONDS else 0.0

    def _read(self) -> float:
        return self._clock.now() - self._clock.monotonic()
