"""The last collective that this rank entered: where it waits if it hangs."""

from __future__ import annotations

import threading
import time
from contextlib import ContextDecorator
from typing import Any, NamedTuple

from .clocks import WaitingClock

NAME_CHARACTERS_MAX = 64


class Entered(NamedTuple):
    name: str
    sequence: int
    """Counts the collectives that this process entered. Ranks that run the same program have the same numbers."""
    entered_at: float
    step: Any
    """The step under way, as the training numbers it; None between steps."""
    inside: bool
    """True while a collective has been entered and not left."""


class CollectiveLog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[str, int, float, Any] | None = None
        self._sequence = 0
        self._open = 0
        self.step: Any = None

    def enter(self, name: str) -> None:
        with self._lock:
            self._sequence += 1
            self._open += 1
            self._last = (name, self._sequence, time.time(), self.step)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1

    def latest(self) -> Entered | None:
        with self._lock:
            return Entered(*self._last, self._open > 0) if self._last else None

    def after_fork(self) -> None:
        self._lock = threading.Lock()


class Collective(ContextDecorator):
    """Around a collective that blocks until all ranks are there: its time is waiting, and it is the last entered."""

    def __init__(self, name: str, log: CollectiveLog, waiting: WaitingClock) -> None:
        self._name = str(name)[:NAME_CHARACTERS_MAX] or "?"
        self._log = log
        self._waiting = waiting

    def __enter__(self) -> None:
        self._log.enter(self._name)
        self._waiting.__enter__()

    def __exit__(self, *_: object) -> None:
        self._waiting.__exit__()
        self._log.leave()
