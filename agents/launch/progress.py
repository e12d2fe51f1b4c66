"""How far the training has come.

Belongs here: the interface, and the ways to learn it. Must not: budgets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_NUMBER = re.compile(r"\d+")
_TAIL_BYTES = 4096


class Progress(Protocol):
    def step(self, launch_age_seconds: float, /) -> int | None:
        """The last step known to be done; None where nothing is known. Never goes back within a launch."""


class FileProgress:
    """The last whole number in a file that the training writes: its newest step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def step(self, _launch_age_seconds: float, /) -> int | None:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL_BYTES))
                numbers = _NUMBER.findall(file.read().decode(errors="replace"))
        except OSError:
            return None
        return int(numbers[-1]) if numbers else None


class ToldProgress:
    """What the ranks' own hook told the agent; another way until it has told something."""

    def __init__(self, told: Callable[[], int | None], until_then: Progress) -> None:
        self._told = told
        self._until_then = until_then
        self._is_told = False

    def step(self, launch_age_seconds: float, /) -> int | None:
        step = self._told()
        self._is_told = self._is_told or step is not None
        return step if self._is_told else self._until_then.step(launch_age_seconds)


class TimeAlive:
    """Nobody tells steps: a launch that has lived so long is taken to have got something done."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._steps = 0
        self._counted_age: float | None = None

    def step(self, launch_age_seconds: float) -> int | None:
        if self._counted_age is not None and launch_age_seconds < self._counted_age:
            self._counted_age = None  # another launch
        if launch_age_seconds >= self._seconds and self._counted_age is None:
            self._steps += 1
            self._counted_age = launch_age_seconds
        return self._steps or None
