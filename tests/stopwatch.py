"""How long something takes at its best: other programs of the machine make a round slow, never quick."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(call: Callable[[], object], rounds: int = 3) -> float:
    taken: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)
