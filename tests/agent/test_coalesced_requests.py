"""Questions for restore points: once for all who ask the same, and bounded for each user."""

from __future__ import annotations

import asyncio

import pytest

from understudy_agent.coalesced_requests import REQUESTS_OF_USER_MAX, CoalescedRequests
from understudy_agent.uplink import RestorePointError, RestorePointRequest
from understudy_wire.messages import RestorePoint


def test_a_user_that_asks_without_end_holds_up_no_other() -> None:
    answered: asyncio.Event

    async def ask(request: RestorePointRequest) -> RestorePoint:
        if request.user_id == 1:
            await answered.wait()
        return RestorePoint(request.job_id, request.restart_count, 30, "/c/30")

    async def play() -> None:
        nonlocal answered
        answered, requests = asyncio.Event(), CoalescedRequests(ask)
        flood = [
            asyncio.create_task(requests(RestorePointRequest(job_id, 0, 0, 1)))
            for job_id in range(REQUESTS_OF_USER_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(RestorePointError, match="requests of this user are open"):
            await requests(RestorePointRequest(9999, 0, 0, 1))
        assert (await requests(RestorePointRequest(7, 0, 0, 2))).step == 30
        answered.set()
        await asyncio.gather(*flood)

    asyncio.run(play())
