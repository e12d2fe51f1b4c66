"""What stands now for the ranks of gangs, on its way to them: notes for the owners of jobs, and questions."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from understudy_wire.ranks import HangQuestion, JobNote, RankWindow

Message = TypeVar("Message", JobNote, HangQuestion)


class ForRanks(Generic[Message]):
    """Safe from any thread."""

    def __init__(self, *, first_rank_only: bool) -> None:
        self._first_rank_only = first_rank_only
        self._lock = threading.Lock()
        self._messages: dict[int, list[Message]] = {}

    def replace(self, messages: Iterable[Message]) -> None:
        by_job: dict[int, list[Message]] = {}
        for one in messages:
            by_job.setdefault(one.job_id, []).append(one)
        with self._lock:
            self._messages = by_job

    def answer_to(self, windows: Sequence[RankWindow]) -> list[Message]:
        """Again with each report, as an answer may be lost: the hook knows what it has had."""
        with self._lock:
            found = [
                message
                for window in (windows if self._messages else ())
                if window.rank == 0 or not self._first_rank_only
                for message in self._messages.get(window.job_id, ())
                if _is_for(message, window)
            ]
        return list(dict.fromkeys(found))


def _is_for(message: JobNote | HangQuestion, window: RankWindow) -> bool:
    of_window = (window.restart_count, window.launch, window.user_id)
    return (message.restart_count, message.launch, message.user_id) == of_window
