"""Reports when a file is renamed into a directory, with inotify(7) instead of polling."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

_MOVED_TO, _DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x80, 0x400, 0x800, 0x1000000
_EVENTS = _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENTS_BYTES = 65_536


class DirectoryWatch:
    """Used from one event loop. When the kernel gives no watch, wait() waits for its timeout."""

    def __init__(self, directory: Path) -> None:
        self._path = os.fsencode(directory)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._changed = asyncio.Event()

    def open(self) -> bool:
        """Watches the directory that exists now. Call it again regularly: the directory may have been replaced.
        False: changes will not be reported.
        """
        if self._descriptor < 0:
            self._descriptor = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if self._descriptor < 0:
                return False
            asyncio.get_running_loop().add_reader(self._descriptor, self._drain)
        return int(self._libc.inotify_add_watch(self._descriptor, self._path, _EVENTS)) >= 0

    async def wait(self, seconds: float) -> None:
        """Returns when a file may have been renamed into the directory, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        self._changed.set()
