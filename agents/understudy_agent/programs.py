"""Files that the programs of this node have read to start, as their ranks 0 report them, for spares to read too."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from understudy_wire.messages import PROGRAMS_PER_NODE_MAX
from understudy_wire.ranks import ProgramFiles

AGAIN_SECONDS = 300.0
"""Interval for a control plane that has been started again."""

Rank = TypeVar("Rank", bound=Hashable)


class Programs(Generic[Rank]):
    def __init__(self) -> None:
        self._programs: dict[Rank, ProgramFiles] = {}
        self._sent: list[ProgramFiles] = []
        self._sent_at = float("-inf")

    def note(self, rank: Rank, files: ProgramFiles) -> None:
        self._programs[rank] = files

    def leave(self, rank: Rank) -> None:
        self._programs.pop(rank, None)

    def due(self, now: float) -> list[ProgramFiles] | None:
        """What the next report names. None: nothing new, and it is too early to repeat it."""
        newest = list(self._programs.values())[-PROGRAMS_PER_NODE_MAX:]
        repeats = bool(newest) and now - self._sent_at >= AGAIN_SECONDS
        return newest if newest != self._sent or repeats else None

    def note_sent(self, programs: list[ProgramFiles], now: float) -> None:
        self._sent, self._sent_at = programs, now
