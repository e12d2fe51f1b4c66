"""Checkpoints that the control plane named to the launcher, for launches while it does not answer.

Belongs here: which of them a launch restores. Looked up once, by the launcher: if each rank looked for itself, a file
system that lags would split the gang.
"""

from __future__ import annotations

import os
import queue
import threading

NAMED_MAX = 16
LOOK_SECONDS_MAX = 2.0
"""A file system that hangs must not hold up the launcher."""

Named = tuple[int, str]
"""Step and path."""

_Known = tuple[int, str, int]
"""The same, and how many ranks can restore it; 0: any number, or it is not known."""


class NamedCheckpoints:
    def __init__(self) -> None:
        self._furthest_first: list[_Known] = []

    def note(self, step: int, path: str, ranks: int = 0) -> None:
        """The newest good one now; an empty path: there is none. Of those that were named before, the ones that are
        further are not good any more.
        """
        behind = [one for one in self._furthest_first if one[0] < step]
        self._furthest_first = [(step, path, ranks), *behind][:NAMED_MAX] if path else []

    def newest(self, ranks: int = 0) -> Named | None:
        """The furthest that is still there, of those that a gang of so many ranks can restore. If none can be seen from
        here, the furthest: its ranks may see it. 0 `ranks`: how many there are is not known.
        """
        usable = [(step, path) for step, path, only in self._furthest_first if only in (0, ranks) or not ranks]
        if not usable:
            return None
        answer: queue.SimpleQueue[Named | None] = queue.SimpleQueue()
        looking = threading.Thread(target=_look, args=(usable, answer), daemon=True)
        looking.start()
        try:
            found = answer.get(timeout=LOOK_SECONDS_MAX)
        except queue.Empty:
            found = None
        return found or usable[0]


def _look(named: list[Named], answer: queue.SimpleQueue[Named | None]) -> None:
    answer.put(next((one for one in named if os.path.lexists(one[1])), None))
