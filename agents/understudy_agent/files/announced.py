"""A file of a checkpoint as it was announced: whether it is that, its checksum, and the pace at which it is read.

Processes with a user's rights import this: it needs the standard library, and `xxhash` where that is installed.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable
from typing import Any

try:
    import xxhash
except ImportError:
    xxhash = None

BLOCK_BYTES = 1 << 20
WRITTEN_AFTER_SECONDS = 300.0
"""Allowed clock skew between file server and announcement."""


class Finding(Exception):
    """What is wrong; `outcome` is one of FileOutcome."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


class Pace:
    """Waits so that no more bytes are read than the rate allows."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._begun = time.monotonic()
        self._read = 0

    def note(self, count: int) -> None:
        self._read += count
        ahead = self._read / self._rate - (time.monotonic() - self._begun)
        if ahead > 0:
            time.sleep(ahead)


def open_announced(place: str, announced: dict[str, Any]) -> int:
    """A descriptor of a file of the announced size. Raises Finding."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise Finding("lost", f"{place} is not there") from None
    found = os.fstat(descriptor)
    what = "" if stat.S_ISREG(found.st_mode) else "is no file"
    if not what and found.st_size != announced["size_bytes"]:
        what = f"has {found.st_size} bytes, {announced['size_bytes']} were announced"
    if what:
        os.close(descriptor)
        raise Finding("bad", f"{place} {what}")
    return descriptor


def sum_named(checksum: str) -> tuple[Callable[[bytes], object], Callable[[], str]] | None:
    """None: there is none, or this Python cannot make it."""
    algorithm = checksum.partition(":")[0]
    if algorithm == "crc32":
        state = [0]

        def update(data: bytes) -> None:
            state[0] = zlib.crc32(data, state[0])

        return update, lambda: f"{state[0]:08x}"
    if algorithm == "xxh3":
        if xxhash is None:
            return None
        made = xxhash.xxh3_128()
        return made.update, made.hexdigest
    return None


def value_of(announced: dict[str, Any]) -> str:
    """Value of its checksum; empty: there is none, or this Python cannot make it."""
    return announced["checksum"].partition(":")[2] if sum_named(announced["checksum"]) is not None else ""
