"""Reads the files of a program into the page cache."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import stat
import zlib
from typing import Any

from understudy_agent.files.announced import BLOCK_BYTES, Finding, Pace

PROGRAM_BYTES_MAX = 4 << 20
"""Most bytes of the paths of a program's files."""


def warm(task: dict[str, Any], pace: Pace) -> str:
    """How much it has read. What is not there is left out. Raises Finding where nothing is."""
    packed, bytes_max = task["program"], task["bytes_max"]
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(packed), PROGRAM_BYTES_MAX)
    except (ValueError, zlib.error) as error:
        raise Finding("unseen", f"the list of files cannot be read: {error}") from None
    paths = text.decode("utf-8", "surrogateescape").split("\n")
    before, read = bytes_max, 0
    for path in paths:
        if bytes_max <= 0:
            break
        count = _warm_file(path, bytes_max, pace)
        if count is None and path.endswith(".pyc"):
            with contextlib.suppress(ValueError):
                count = _warm_file(importlib.util.source_from_cache(path), bytes_max, pace)
        read += count is not None
        bytes_max -= count or 0
    if not read:
        raise Finding("unseen", f"none of its {len(paths)} files can be read here")
    return f"{read} of {len(paths)} files, {(before - bytes_max) / 1e6:.0f} MB"


def _warm_file(path: str, bytes_max: int, pace: Pace) -> int | None:
    """How many bytes it has read. None: there is no such file for this user."""
    if not path.startswith("/"):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        found, at = os.fstat(descriptor), 0
        if not stat.S_ISREG(found.st_mode):
            return None
        while at < min(found.st_size, bytes_max) and (data := os.pread(descriptor, BLOCK_BYTES, at)):
            at += len(data)
            pace.note(len(data))
    except OSError:
        return None
    else:
        return at
    finally:
        os.close(descriptor)
