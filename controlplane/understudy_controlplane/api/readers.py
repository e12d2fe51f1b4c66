"""Reads of people and programs: few at the same time, on threads of their own, and not for ever. Senders take turns.

Neither the loop nor the routes that take reports wait for a reader. A thread that has read rests before its next read:
Python runs one thread at a time, and readers that never rest would take most of that time from the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

import msgspec
import structlog
from fastapi import Response

from understudy_controlplane.config import Limits
from understudy_controlplane.ingest.answers import JSON, refuse
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

reader: ContextVar[str] = ContextVar("reader", default="")
"""Who sends the request that this task carries out: RequestLimits sets it."""

REST = 2.0
"""Rest of a thread, in relation to the processor time of the read before."""


T = TypeVar("T")


class TooManyReads(Exception):
    """Too many reads wait."""


class Readers:
    def __init__(self, at_once: int, limits: Limits) -> None:
        self._threads = ThreadPoolExecutor(at_once, "reader")
        self._free = at_once
        self._limits = limits
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Sender → its reads that wait. The first sender has the next turn."""
        self._rested = threading.local()

    async def read(self, content: Callable[[], object]) -> Response:
        """`content()` as JSON, or its own Response. It is encoded on the reader's thread as well."""
        return await self.attempt(lambda: _encoded(content()))

    async def attempt(self, content: Callable[[], T]) -> T | Response:
        """`content()`, or the refusal where it cannot be read now."""
        try:
            return await self.run(content)
        except TooManyReads as error:
            return refuse(503, str(error), "repeat the request after a second")
        except StoreError as error:
            cause = type(getattr(error, "orig", None) or error).__name__
            log.warning("read_failed", error=str(getattr(error, "orig", error)))
            return refuse(
                503,
                f"the database did not answer in time, or not at all: {cause}",
                f"ask for fewer records: a query may take {Limits.read_seconds_max:g} s",
            )

    async def run(self, content: Callable[[], T]) -> T:
        """Raises StoreError and TooManyReads."""
        sender = reader.get()
        waiting = sum(map(len, self._waiting.values()))
        if not self._may_wait(sender, waiting):
            raise TooManyReads(f"{waiting} reads wait for a thread")
        await self._turn_of(sender)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._rest_and_read, content)
        finally:
            self._end_turn()

    def _may_wait(self, sender: str, waiting: int) -> bool:
        """However many reads of others wait, a sender may have one."""
        own = len(self._waiting.get(sender, ()))
        return not own or (own < self._limits.reads_waiting_per_token_max and waiting < self._limits.reads_waiting_max)

    async def _turn_of(self, sender: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        """Gives the thread to the next sender that waits."""
        while self._waiting:
            sender = next(iter(self._waiting))
            turns = self._waiting.pop(sender)
            turn = turns.popleft()
            if turns:
                self._waiting[sender] = turns
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1

    def _rest_and_read(self, content: Callable[[], T]) -> T:
        time.sleep(max(getattr(self._rested, "at", 0.0) - time.monotonic(), 0.0))
        begun = time.thread_time()
        try:
            return content()
        finally:
            self._rested.at = time.monotonic() + REST * (time.thread_time() - begun)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _encoded(value: object) -> Response:
    return value if isinstance(value, Response) else Response(msgspec.json.encode(value), media_type=JSON)
