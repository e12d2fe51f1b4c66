"""Streams of server-sent events: each has a place, which is free again when it has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from understudy_controlplane.config import Limits
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.ingest.answers import refuse

EVENTS = "text/event-stream"


class Places:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._open.total()

    def enter(self, who: str) -> Response | None:
        """Takes a place until `leave`; or answers a refusal."""
        if self._open[who] >= self._limits.event_streams_per_token_max:
            return refuse(429, f"{who} has {self._open[who]} streams open already", "close one of them first")
        if self.taken >= self._limits.event_streams_max:
            hint = "repeat the request once another stream has ended"
            return refuse(503, f"{self.taken} streams are open already", hint)
        self._open[who] += 1
        return None

    def leave(self, who: str) -> None:
        self._open[who] -= 1
        if not self._open[who]:
            del self._open[who]


class EventStream(StreamingResponse):
    def __init__(self, content: AsyncIterator[str], leave: Callable[[], None]) -> None:
        """`leave` is called when the stream has ended, however it ends."""
        super().__init__(content, media_type=EVENTS, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def who_reads(identity: Identity) -> str:
    return f"token {identity.token}" if identity.token else identity.label or identity.address


async def wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass
