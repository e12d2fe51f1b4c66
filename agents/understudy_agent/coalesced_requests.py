"""Questions for a restore point, asked once for all tasks of a job on this node: they start in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from understudy_agent.uplink import RestorePointError, RestoreQuestion
from understudy_agent.wire import RestorePoint

ANSWER_KEPT_SECONDS = 2.0
"""An attempt's restore point never changes; but job ids are used again, and a job may still ask to be ours."""

QUESTIONS_OPEN_MAX = 64
"""Any user may ask about any job."""


class SharedQuestions:
    """Callable as the question itself. Lives in one event loop."""

    def __init__(self, ask: Callable[[RestoreQuestion], Awaitable[RestorePoint]]) -> None:
        self._ask = ask
        self._asked: dict[RestoreQuestion, asyncio.Task[RestorePoint]] = {}

    async def __call__(self, question: RestoreQuestion) -> RestorePoint:
        """Raises RestorePointError."""
        asked = self._asked.get(question)
        if asked is None:
            if len(self._asked) >= QUESTIONS_OPEN_MAX:
                raise RestorePointError(f"{QUESTIONS_OPEN_MAX} questions are open on this node; ask again")
            asked = self._asked[question] = asyncio.create_task(self._put(question))
            asked.add_done_callback(lambda task: self._answered(question, task))
        return await asyncio.shield(asked)  # whoever hangs up does so for himself

    async def _put(self, question: RestoreQuestion) -> RestorePoint:
        return await self._ask(question)

    def _answered(self, question: RestoreQuestion, task: asyncio.Task[RestorePoint]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._asked[question]
        else:
            asyncio.get_running_loop().call_later(ANSWER_KEPT_SECONDS, self._asked.pop, question, None)
