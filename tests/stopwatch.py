"""How long something takes at its best: other programs of the machine make a round slow, never quick."""

from __future__ import annotations

import time
from collections.abc import Callable

REFERENCE_TEXT = " ".join(f"Key{number % 40}=value{number}" for number in range(60_000))
REFERENCE_SECONDS = 0.0147
"""What `reference` takes on the machine that the bounds of tests are for."""


def best_seconds(call: Callable[[], object], rounds: int = 3) -> float:
    """Best time by the clock: for work that other programs do too. Seconds of the reference machine."""
    return _best(call, rounds, time.perf_counter)


def best_processor_seconds(call: Callable[[], object], rounds: int = 3) -> float:
    """Best processor time of this thread, in seconds of the reference machine."""
    return _best(call, rounds, time.thread_time)


def _best(call: Callable[[], object], rounds: int, clock: Callable[[], float]) -> float:
    """A fixed piece of work is timed beside each round: processors differ by a factor of two, and one that is shared
    has less cache.
    """
    best = float("inf")
    for _ in range(rounds):
        before = _seconds(reference, time.thread_time)
        taken = _seconds(call, clock)
        best = min(best, taken / min(before, _seconds(reference, time.thread_time)))
    return best * REFERENCE_SECONDS


def reference() -> object:
    """Strings and dictionaries, as in what is timed."""
    found: dict[str, list[str]] = {}
    for part in REFERENCE_TEXT.split(" "):
        key, _, value = part.partition("=")
        found.setdefault(key, []).append(value)
    return found


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    call()
    return clock() - begun
