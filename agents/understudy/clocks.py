"""Stopwatches: for the step a rank is in, and for the time spent waiting, for other ranks or for data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
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

    def __exit__(self, *_: object) -> None:
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


class TransferClock:
    """Time that was spent in transfers with each peer since the last step."""

    def __init__(self, waiting: WaitingClock) -> None:
        self._waiting = waiting
        self._seconds: dict[int, float] = {}

    def add(self, peer: SupportsInt, seconds: float) -> None:
        """If two threads add at once, one may be lost, which no verdict depends on."""
        try:
            rank = int(peer)
        except (TypeError, ValueError, OverflowError):
            return  # it is no rank
        self._seconds[rank] = self._seconds.get(rank, 0.0) + seconds

    def take(self) -> dict[int, float] | None:
        if not self._seconds:
            return None
        taken, self._seconds = self._seconds, {}
        return taken

    def with_peer(self, peer: SupportsInt) -> Transfer:
        return Transfer(peer, self, self._waiting)


class Transfer:
    """Around a transfer that blocks until it is done: its time is waiting, for this peer."""

    __slots__ = ("_begun", "_clock", "_peer", "_waiting")

    def __init__(self, peer: SupportsInt, clock: TransferClock, waiting: WaitingClock) -> None:
        self._peer = peer
        self._clock = clock
        self._waiting = waiting

    def __enter__(self) -> None:
        self._begun = perf_counter()
        self._waiting.__enter__()

    def __exit__(self, *_: object) -> None:
        self._waiting.__exit__()
        self._clock.add(self._peer, perf_counter() - self._begun)


class Clocks(NamedTuple):
    waiting: WaitingClock  # for other ranks
    data: WaitingClock
    transfers: TransferClock


class FinishedStep(NamedTuple):
    number: SupportsInt
    self_seconds: float  # without waiting
    wall_seconds: float
    data_seconds: float  # waiting for data, in the step and since the step before
    work: SupportsFloat | None
    transfers: dict[int, float] | None = None
    """Seconds in transfers with each peer, in the step and since the step before."""


class StepTimer:
    """Times one step. A step that ends in an exception does not count."""

    __slots__ = (
        "_begin",
        "_data",
        "_data_before",
        "_done",
        "_end",
        "_number",
        "_started",
        "_transfers",
        "_waiting",
        "_work",
    )

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
        self._waiting, self._data, self._transfers = clocks
        self._begin = begin
        self._end = end
        self._done = done

    def __enter__(self) -> None:
        self._begin(self._number)
        self._started = perf_counter()
        self._waiting.restart(self._started)
        self._data_before = self._data.restart(self._started)

    def __exit__(self, kind: object, *_: object) -> None:
        self._end()
        now = perf_counter()
        waited, data = self._waiting.restart(now), self._data.restart(now)
        if kind is None:
            wall = now - self._started
            own = max(0.0, wall - waited - data)
            transfers = self._transfers.take()
            self._done(FinishedStep(self._number, own, wall, self._data_before + data, self._work, transfers))
