"""Files whose file system may hang: threads read and write them, so that the launcher does not wait."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TextIO, TypeVar

READ_SECONDS_MAX = 0.2
"""Time for one look at a file. A healthy file system takes some milliseconds."""
HANGS_SECONDS = 1.0
"""Time for one reading. A file system that is only busy takes less, now and then more than a look."""
LINES_MAX = 10_000
"""Lines that wait to be written."""
CLOSE_SECONDS_MAX = 2.0

T = TypeVar("T")


class SlowRead(Generic[T]):
    """What a function last returned. One that hangs is waited for once; until it returns, its last value stands."""

    def __init__(self, read: Callable[[], T], first: T) -> None:
        self._read = read
        self._newest = first
        self._thread: threading.Thread | None = None
        self._wanted: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._reading: threading.Event | None = None
        self._asked_at = 0.0

    @property
    def hangs(self) -> bool:
        return self._is_reading and time.monotonic() - self._asked_at > HANGS_SECONDS

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.is_set()

    def newest(self) -> T:
        """Takes READ_SECONDS_MAX at most."""
        if self._is_reading:
            return self._newest
        self._reading, self._asked_at = threading.Event(), time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="slow read", daemon=True)
            self._thread.start()
        self._wanted.put(self._reading)
        self._reading.wait(READ_SECONDS_MAX)
        return self._newest

    def _run(self) -> None:
        while True:
            done = self._wanted.get()
            try:
                self._newest = self._read()
            finally:
                done.set()


class LateText:
    """A text stream whose writes never wait and never fail. What does not fit any more is dropped, and counted.

    A full disk, or one that hangs, is no reason to stop a training job.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = _own(file)
        self._waiting: queue.Queue[str] = queue.Queue(LINES_MAX)
        self._dropped = 0
        threading.Thread(target=self._run, name="late text", daemon=True).start()

    def write(self, text: str) -> int:
        notice = (
            f"understudy: {self._dropped} lines before this one were dropped: writing hung\n" if self._dropped else ""
        )
        try:
            self._waiting.put_nowait(notice + text)
        except queue.Full:
            self._dropped += 1
        else:
            self._dropped = 0
        return len(text)

    def flush(self) -> None:
        """Each text is flushed when it is written."""

    def close(self) -> None:
        """Waits until everything is written, CLOSE_SECONDS_MAX at most."""
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)

    def _run(self) -> None:
        while True:
            text = self._waiting.get()
            try:
                self._file.write(text)
                self._file.flush()
            except (OSError, ValueError):  # the disk is full, or the file is closed: the process ends
                pass
            finally:
                self._waiting.task_done()


def _own(file: TextIO) -> TextIO:
    """The same file with a buffer of its own: at its end Python flushes standard error, and aborts where a thread
    writes to that.
    """
    try:
        return open(os.dup(file.fileno()), "w", encoding="utf-8")  # noqa: PTH123 - a descriptor, kept for good
    except (OSError, ValueError):  # it is in memory
        return file
