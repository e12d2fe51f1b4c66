"""A thread that reads something which may hang: a file system that is away, an adapter whose firmware stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from understudy_agent.log import log

SILENT_AFTER_SECONDS = 30.0

Value = TypeVar("Value")


class Sampler(Generic[Value]):
    """Reads every interval, and hands each value to `take` in the agent's event loop."""

    def __init__(
        self,
        what: str,
        read: Callable[[], Value],
        interval_seconds: float,
        silent_after_seconds: float = SILENT_AFTER_SECONDS,
    ) -> None:
        """`what` is said when it hangs: "the fabric's ports"."""
        self._what = what
        self._read = read
        self._interval_seconds = interval_seconds
        self._silent_after_seconds = silent_after_seconds
        self._asked_at: float | None = None
        self._started_at: float | None = None
        self._answered_at: float | None = None
        self._problem = ""
        self._stopping = threading.Event()

    def start(self, take: Callable[[Value], None]) -> None:
        # A daemon: a call that hangs in the kernel cannot be ended, and must not keep the agent from ending.
        self._started_at = time.monotonic()
        arguments = (asyncio.get_running_loop(), take)
        threading.Thread(target=self._run, args=arguments, name=f"understudy-{self._what}", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def silent_seconds(self) -> float:
        """For how long a value has been owed, whether reading hangs or fails; 0: there is one, and it is of now."""
        if self._started_at is None:
            return 0.0
        now = time.monotonic()
        if self._answered_at is None:
            return max(now - self._started_at, 0.1)
        owed = now - self._answered_at - self._interval_seconds
        return owed if owed > self._silent_after_seconds else 0.0

    def problems(self) -> list[str]:
        asked_at = self._asked_at
        if asked_at is not None and (seconds := time.monotonic() - asked_at) > self._silent_after_seconds:
            return [f"{self._what}: reading them has hung for {seconds:.0f} s"]
        return [self._problem] if self._problem else []

    def _run(self, loop: asyncio.AbstractEventLoop, take: Callable[[Value], None]) -> None:
        while not self._stopping.is_set():
            self._asked_at = time.monotonic()
            try:
                value = self._read()
            except Exception as error:  # noqa: BLE001 - what a kernel shows is not ours to foresee; it is told
                if not self._problem:
                    log.exception("not_read")
                self._problem = f"{self._what} cannot be read: {type(error).__name__}: {error}"
            else:
                self._problem = ""
                self._answered_at = time.monotonic()
                if loop.is_closed():
                    return
                try:
                    loop.call_soon_threadsafe(take, value)
                except RuntimeError:  # it was closed just now
                    return
            self._asked_at = None
            self._stopping.wait(self._interval_seconds)
