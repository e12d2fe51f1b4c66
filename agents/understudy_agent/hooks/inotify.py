"""A directory that says when a file was renamed into it, so that nobody has to look again and again: inotify(7)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

_MOVED_TO, _DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x80, 0x400, 0x800, 0x1000000
_NEWS = _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENTS_BYTES = 65_536


class DirectoryWatch:
    """Everything of one event loop. Where the kernel has no watch to give, waiting is what is left."""

    def __init__(self, directory: Path) -> None:
        self._path = os.fsencode(directory)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = -1
        self._news = asyncio.Event()

    def open(self) -> bool:
        """Watch the directory that is there now; to be called again now and then, for it may be another one by then.
        False: changes will not be told.
        """
        if self._descriptor < 0:
            self._descriptor = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if self._descriptor < 0:
                return False
            asyncio.get_running_loop().add_reader(self._descriptor, self._drain)
        return int(self._libc.inotify_add_watch(self._descriptor, self._path, _NEWS)) >= 0

    async def wait(self, seconds: float) -> None:
        """Until there may be news, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        self._news.set()
