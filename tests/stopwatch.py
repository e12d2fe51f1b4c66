"""How long something takes at its best: other programs of the machine make a round slow, never quick."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(call: Callable[[], object], rounds: int = 3, clock: Callable[[], float] = time.thread_time) -> float:
    """By default of this thread's own processor time, which the load of the machine hardly changes."""
    taken: list[float] = []
    for _ in range(rounds):
        begun = clock()
        call()
        taken.append(clock() - begun)
    return min(taken)
