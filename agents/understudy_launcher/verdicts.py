"""Verdicts: which nodes are bad."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from understudy_launcher.slow_files import SlowRead


class Verdicts(Protocol):
    def poll(self) -> Mapping[str, str]:
        """Bad nodes, and why, as of now. Quick: it is asked many times a second."""


class FileVerdicts:
    """A file with a line `node reason…` for each bad node, or a directory with a file for each, named after it.

    A file that does not exist condemns no node. Its writer should replace it as a whole (rename), or append to it.
    """

    def __init__(self, path: Path, interval_seconds: float = 0.0) -> None:
        self._path = path
        self._interval_seconds = interval_seconds
        self._looked = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._read_last: Mapping[str, str] = {}
        self._known: Mapping[str, str] = {}
        self._slow = SlowRead[Mapping[str, str]](self._look, {})

    def poll(self) -> Mapping[str, str]:
        now = time.monotonic()
        if now - self._looked >= self._interval_seconds:
            self._looked = now
            self._known = self._slow.newest()
        return self._known

    def _look(self) -> Mapping[str, str]:
        try:
            found = self._path.stat()
        except OSError:
            self._stamp, self._read_last = None, {}
            return self._read_last
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            try:
                self._read_last = self._read()
            except OSError:  # being replaced: asked again at once
                return self._read_last
            self._stamp = stamp
        return self._read_last

    def _read(self) -> Mapping[str, str]:
        if self._path.is_dir():
            return {one.name: _reason(one.read_text(errors="replace")) for one in sorted(self._path.iterdir())}
        lines = (line.split(maxsplit=1) for line in self._path.read_text(errors="replace").splitlines())
        return {fields[0]: _reason("".join(fields[1:])) for fields in lines if fields}


def _reason(text: str) -> str:
    return " ".join(text.split()) or "a verdict, without a reason"
