"""Stopwatches: for the step a rank is in, and for the time spent waiting, for other ranks or for data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, SupportsFloat, SupportsInt


class WaitingClock:
    """Time during which at least one thread is waiting; nested and concurrent waits count once.

    Collectives are waited for in several threads at a time: the training's own, and autograd's when a
    communication hook runs during the backward pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._total = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._waiting == 0:
                self._since = perf_counter()
            self._waiting += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0:
                self._total += perf_counter() - self._since

    def add(self, seconds: float) -> None:
        """Waiting that was measured elsewhere, by a GPU's events: it counts from when it became known."""
        with self._lock:
            self._total += seconds

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def restart(self, now: float) -> float:
        """The time counted since the last restart."""
        if not self._waiting and not self._total:
            return 0.0  # without the lock: this is most steps
        with self._lock:
            total = self._total
            if self._waiting:
                total += now - self._since
                self._since = now
            self._total = 0.0
            return total


class Clocks(NamedTuple):
    waiting: WaitingClock  # for other ranks
    data: WaitingClock


class FinishedStep(NamedTuple):
    number: SupportsInt
    self_seconds: float  # without waiting
    wall_seconds: float
    data_seconds: float  # waiting for data, in the step and since the step before
    work: SupportsFloat | None


class StepTimer:
    """Times one step. A step that ends in an exception does not count."""

    __slots__ = ("_begin", "_data", "_data_before", "_done", "_end", "_number", "_started", "_waiting", "_work")

    def __init__(
        self,
        number: SupportsInt,
        work: SupportsFloat | None,
        clocks: Clocks,
        begin: Callable[[SupportsInt], None],
        end: Callable[[], None],
        done: Callable[[FinishedStep], None],
    ) -> None:
        """Calls `begin` with the number at the start, `end` at every end, `done` with the times if the step counts."""
        self._number = number
        self._work = work
        self._waiting, self._data = clocks
        self._begin = begin
        self._end = end
        self._done = done

    def __enter__(self) -> None:
        self._begin(self._number)
        self._started = perf_counter()
        self._waiting.restart(self._started)
        self._data_before = self._data.restart(self._started)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        now = perf_counter()
        waited, data = self._waiting.restart(now), self._data.restart(now)
        if kind is None:
            wall = now - self._started
            own = max(0.0, wall - waited - data)
            self._done(FinishedStep(self._number, own, wall, self._data_before + data, self._work))
