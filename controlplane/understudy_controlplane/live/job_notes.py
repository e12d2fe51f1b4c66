"""Notes for the owners of jobs, on their way to rank 0 of each gang: those that stand now."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from understudy_wire.ranks import JobNote, RankWindow


class JobNotes:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[int, list[JobNote]] = {}

    def replace(self, notes: Iterable[JobNote]) -> None:
        by_job: dict[int, list[JobNote]] = {}
        for one in notes:
            by_job.setdefault(one.job_id, []).append(one)
        with self._lock:
            self._notes = by_job

    def answer_to(self, windows: Sequence[RankWindow]) -> list[JobNote]:
        """Again with each report, as an answer may be lost: the hook writes each note once."""
        with self._lock:
            return [
                note
                for window in (windows if self._notes else ())
                if window.rank == 0
                for note in self._notes.get(window.job_id, ())
                if _is_for(note, window)
            ]


def _is_for(note: JobNote, window: RankWindow) -> bool:
    of_window = (window.restart_count, window.launch, window.user_id)
    return (note.restart_count, note.launch, note.user_id) == of_window
