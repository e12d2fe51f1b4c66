"""Reads of people and programs: few at the same time, on threads of their own, and not for ever.

Neither the loop nor the routes that take reports wait for a reader. A thread that has read rests before its next read:
Python runs one thread at a time, and readers that never rest would take most of that time from the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import structlog
from fastapi import Response

from understudy_controlplane.ingest.answers import JSON, refuse
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

REST = 2.0
"""Of a thread, in relation to the processor time of the read before."""


class Readers:
    def __init__(self, at_once: int, waiting_max: int) -> None:
        """Further reads wait; those above `waiting_max` are refused."""
        self._threads = ThreadPoolExecutor(at_once, "reader")
        self._admitted_max = at_once + waiting_max
        self._admitted = 0
        self._rested = threading.local()

    async def read(self, content: Callable[[], object]) -> Response:
        """`content()` as JSON, or its own Response. It is encoded on the reader's thread as well."""
        if self._admitted >= self._admitted_max:
            return _refusal(f"{self._admitted} reads are under way or wait", "repeat the request after a second")
        self._admitted += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, content)
        except StoreError as error:
            cause = type(getattr(error, "orig", None) or error).__name__
            log.warning("read_failed", error=str(getattr(error, "orig", error)))
            return _refusal(
                f"the database did not answer in time, or not at all: {cause}",
                "ask for fewer records; limits.read_seconds_max is the time that a query may take",
            )
        finally:
            self._admitted -= 1

    def _read(self, content: Callable[[], object]) -> Response:
        time.sleep(max(getattr(self._rested, "at", 0.0) - time.monotonic(), 0.0))
        begun = time.thread_time()
        try:
            value = content()
            return value if isinstance(value, Response) else Response(msgspec.json.encode(value), media_type=JSON)
        finally:
            self._rested.at = time.monotonic() + REST * (time.thread_time() - begun)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _refusal(error: str, hint: str) -> Response:
    response = refuse(503, error, hint)
    response.headers["Retry-After"] = "1"
    return response
