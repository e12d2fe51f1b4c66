"""How far the training job has come: the interface, and the ways to learn it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from understudy_launcher.slow_files import SlowRead

_NUMBER = re.compile(r"\d+")
_TAIL_BYTES = 4096


class Progress(Protocol):
    def step(self, launch_age_seconds: float, /) -> int | None:
        """The last step known to be done; None where nothing is known. Never goes back within a launch."""

    @property
    def hangs(self) -> bool:
        """A newer step could not be seen now: the file system hangs."""


class FileProgress:
    """The last whole number in a file that the training writes: its newest step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._slow = SlowRead[int | None](self._read, None)

    def step(self, _launch_age_seconds: float, /) -> int | None:
        return self._slow.newest()

    @property
    def hangs(self) -> bool:
        return self._slow.hangs

    def _read(self) -> int | None:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL_BYTES))
                numbers = _NUMBER.findall(file.read().decode(errors="replace"))
        except OSError:
            return None
        return int(numbers[-1]) if numbers else None


class HookProgress:
    """Steps that the ranks' training hook reports through the agent. Until it has reported some, and while the control
    plane is silent, `otherwise` is asked: of ranks on other nodes the agent learns only through the control plane.
    """

    def __init__(self, reported: Callable[[], int | None], otherwise: Progress, silent: Callable[[], bool]) -> None:
        """`silent`: whether the control plane does not answer now."""
        self._reported = reported
        self._otherwise = otherwise
        self._silent = silent
        self._furthest: int | None = None
        self._age = 0.0
        self._silence: tuple[float, int | None] | None = None
        """Age of this launch at which the silence began, and the step reported then."""
        self._counted = 0
        """What `otherwise` had counted before the silence."""

    @property
    def hangs(self) -> bool:
        return self._otherwise.hangs

    def step(self, launch_age_seconds: float, /) -> int | None:
        step = self._reported()
        if step is not None:
            self._furthest = max(step, self._furthest or 0)
        if self._furthest is None:
            return self._otherwise.step(launch_age_seconds)
        if launch_age_seconds < self._age and self._silence is not None:
            self._silence = (0.0, None)  # another launch, which began in it
        self._age = launch_age_seconds
        if not self._silent():
            self._silence = None
            return step
        if self._silence is None:
            self._silence = (launch_age_seconds, step)
            self._counted = self._otherwise.step(0.0) or 0
        since, then = self._silence
        if step != then:
            return step  # ranks on this node report it
        more = (self._otherwise.step(launch_age_seconds - since) or 0) - self._counted
        return self._furthest + more if more else step


class TimeAlive:
    """No steps are known: a launch that has lived for this time is taken to have made progress."""

    hangs = False

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
