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


class NamedCheckpoints:
    def __init__(self) -> None:
        self._furthest_first: list[Named] = []

    def note(self, step: int, path: str) -> None:
        """The newest good one now; an empty path: there is none. Of those that were named before, the ones that are
        further are not good any more.
        """
        behind = [one for one in self._furthest_first if one[0] < step]
        self._furthest_first = [(step, path), *behind][:NAMED_MAX] if path else []

    def newest(self) -> Named | None:
        """The furthest that is still there. If none can be seen from here, the furthest: its ranks may see it."""
        if not self._furthest_first:
            return None
        answer: queue.SimpleQueue[Named | None] = queue.SimpleQueue()
        looking = threading.Thread(target=_look, args=(list(self._furthest_first), answer), daemon=True)
        looking.start()
        try:
            found = answer.get(timeout=LOOK_SECONDS_MAX)
        except queue.Empty:
            found = None
        return found or self._furthest_first[0]


def _look(named: list[Named], answer: queue.SimpleQueue[Named | None]) -> None:
    answer.put(next((one for one in named if os.path.lexists(one[1])), None))
