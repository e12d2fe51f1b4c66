"""A thread that reads something that may hang: a remote file system, an adapter whose firmware is stuck."""

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
    """Reads every interval, and passes each value to `take` in the agent's event loop."""

    def __init__(
        self,
        what: str,
        read: Callable[[], Value],
        interval_seconds: float,
        silent_after_seconds: float = SILENT_AFTER_SECONDS,
    ) -> None:
        """`what` is named in problems: "fabric ports"."""
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
        # A daemon: a call that hangs in the kernel cannot be ended, and must not prevent the agent's end.
        self._started_at = time.monotonic()
        arguments = (asyncio.get_running_loop(), take)
        threading.Thread(target=self._run, args=arguments, name=f"understudy-{self._what}", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def silent_seconds(self) -> float:
        """How long no value has come, whether reading hangs or fails; 0: the last value is recent."""
        if self._started_at is None:
            return 0.0
        now = time.monotonic()
        if self._answered_at is None:
            return max(now - self._started_at, 0.1)
        late = now - self._answered_at - self._interval_seconds
        return late if late > self._silent_after_seconds else 0.0

    def problems(self) -> list[str]:
        asked_at = self._asked_at
        if asked_at is not None and (seconds := time.monotonic() - asked_at) > self._silent_after_seconds:
            return [f"{self._what}: reading has hung for {seconds:.0f} s"]
        return [self._problem] if self._problem else []

    def _run(self, loop: asyncio.AbstractEventLoop, take: Callable[[Value], None]) -> None:
        while not self._stopping.is_set():
            self._asked_at = time.monotonic()
            try:
                value = self._read()
            except Exception as error:  # noqa: BLE001 - any content of the kernel's files; the error is reported
                if not self._problem:
                    log.exception("sample_failed")
                self._problem = f"{self._what} cannot be read: {type(error).__name__}: {error}"
            else:
                self._problem = ""
                self._answered_at = time.monotonic()
                if loop.is_closed():
                    return
                try:
                    loop.call_soon_threadsafe(take, value)
                except RuntimeError:  # it was closed meanwhile
                    return
            self._asked_at = None
            self._stopping.wait(self._interval_seconds)
