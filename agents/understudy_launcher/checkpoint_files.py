"""Checkpoints that a launch continues from: those that the control plane named, and the file of `--resume-if`.

The launcher looks them up once for each launch: if each rank looked for itself, a file system that lags would split the
gang.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

NAMED_MAX = 16
NAMED_SECONDS_MAX = 2.0
"""A file system that hangs must not hold up the launcher."""
RESUME_SECONDS_MAX = 5.0
"""A cold file server takes seconds."""

Named = tuple[int, str]
"""Step and path."""

T = TypeVar("T")


class NamedCheckpoints:
    """Checkpoints for launches that begin while the control plane does not answer."""

    def __init__(self) -> None:
        self._furthest_first: list[tuple[int, str, int]] = []
        """Step, path, and how many ranks can restore it; 0: any number, or it is not known."""

    def note(self, step: int, path: str, ranks: int = 0) -> None:
        """The newest good one now; an empty path: there is none. Of those that were named before, the ones that are
        further are not good any more.
        """
        behind = [one for one in self._furthest_first if one[0] < step]
        self._furthest_first = [(step, path, ranks), *behind][:NAMED_MAX] if path else []

    def newest(self, ranks: int = 0) -> Named | None:
        """The furthest that is still there and that a gang of so many ranks can restore; 0: their number is not known.
        If none can be seen from here, the furthest: its ranks may see it.
        """
        usable = [(step, path) for step, path, only in self._furthest_first if only in (0, ranks) or not ranks]
        seen = _within(NAMED_SECONDS_MAX, lambda: next((one for one in usable if os.path.lexists(one[1])), None), None)
        return seen or next(iter(usable), None)


def look_for(file: Path) -> str | None:
    """When the file was written, in words; None: it is not there. Where the file system does not answer, it may be
    there: a program that begins again would write over it, and one that cannot continue fails.
    """
    return _within(RESUME_SECONDS_MAX, lambda: _written(file), "its file system does not answer")


def _written(file: Path) -> str | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - it may be a folder
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    return f"written {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found.st_mtime))}"


def _within(seconds: float, look: Callable[[], T | None], otherwise: T | None) -> T | None:
    """What `look` returns, or `otherwise` where that takes longer."""
    answer: queue.SimpleQueue[T | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(look()), name="checkpoint files", daemon=True).start()
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return otherwise
