"""Restore points, requested once for all tasks of a job on this node: the tasks start at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from understudy_agent.uplink import RestorePointError, RestorePointRequest
from understudy_wire.messages import RestorePoint

ANSWER_KEPT_SECONDS = 2.0
"""The restore point of an attempt never changes; but Slurm reuses job ids, and a job can become managed later."""

REQUESTS_OF_USER_MAX = 64
"""A limit, because any user may ask about any job."""

REQUESTS_OPEN_MAX = 1024


class CoalescedRequests:
    """Called like the request itself. Belongs to one event loop."""

    def __init__(self, ask: Callable[[RestorePointRequest], Awaitable[RestorePoint]]) -> None:
        self._ask = ask
        self._open: dict[RestorePointRequest, asyncio.Future[RestorePoint]] = {}

    async def __call__(self, request: RestorePointRequest) -> RestorePoint:
        """Raises RestorePointError."""
        task = self._open.get(request)
        if task is None:
            if sum(one.user_id == request.user_id for one in self._open) >= REQUESTS_OF_USER_MAX:
                raise RestorePointError(
                    f"{REQUESTS_OF_USER_MAX} requests of this user are open on this node; try again"
                )
            if len(self._open) >= REQUESTS_OPEN_MAX:
                raise RestorePointError(f"{REQUESTS_OPEN_MAX} requests are open on this node; try again")
            task = self._open[request] = asyncio.ensure_future(self._ask(request))
            task.add_done_callback(lambda done: self._finish(request, done))
        return await asyncio.shield(task)  # a caller that disconnects cancels only its own wait

    def _finish(self, request: RestorePointRequest, task: asyncio.Future[RestorePoint]) -> None:
        if task.cancelled() or task.exception() is not None or task.result().look:
            del self._open[request]
        else:
            asyncio.get_running_loop().call_later(ANSWER_KEPT_SECONDS, self._open.pop, request, None)
