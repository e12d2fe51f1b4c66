"""Copies files of a checkpoint to another folder. What was broken off goes on from there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from understudy_agent.files.announced import BLOCK_BYTES, Finding, Pace, open_announced, sum_named, value_of
from understudy_agent.files.read import read_blocks, read_file

FULL = (errno.ENOSPC, errno.EDQUOT)


def copy(task: dict[str, Any], pace: Pace) -> str:
    """Raises Finding."""
    for one in task["files"]:
        _copy_file(Path(task["path"]) / one["file"], Path(task["copy_to"]) / one["file"], one, pace)
    return "copied"


def _copy_file(source: Path, target: Path, announced: dict[str, Any], pace: Pace) -> None:
    """It is there whole, or as it was before. Goes on where an earlier process was ended. Raises Finding."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if announced["checksum"] and _is_there(target, announced, pace):
        return
    partial = target.with_name(f"{target.name}.copy")
    reading = open_announced(str(source), announced)
    try:
        writing = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(writing, stat.S_IMODE(os.fstat(reading).st_mode) & 0o777)
            can_go_on = sum_named(announced["checksum"]) is not None
            begun = os.fstat(writing).st_size if can_go_on else 0
            value = _copy_content(reading, writing, announced, begun, pace)
            if value != value_of(announced) and begun:  # of another checkpoint
                value = _copy_content(reading, writing, announced, 0, pace)
            if value != value_of(announced):
                raise Finding("bad", f"{source} has the checksum {value}, {announced['checksum']} was announced")
            times = os.fstat(reading)
            os.utime(writing, ns=(times.st_atime_ns, times.st_mtime_ns))  # it was not written later
            os.fsync(writing)
        finally:
            os.close(writing)
        partial.replace(target)
    except OSError as error:
        if error.errno in FULL:
            partial.unlink(missing_ok=True)
        raise
    finally:
        os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(reading)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy_content(reading: int, writing: int, announced: dict[str, Any], begun: int, pace: Pace) -> str:
    """Copies from `begun` on; what is before it is there. Returns the checksum of all of it; empty: there is none."""
    size = announced["size_bytes"]
    update, value = sum_named(announced["checksum"]) or (lambda _: None, lambda: "")
    at = min(begun, size)
    os.ftruncate(writing, at)
    read_blocks(writing, announced["file"], at, pace, [update])
    while at < size:
        data = os.pread(reading, min(BLOCK_BYTES, size - at), at)
        if not data:
            raise Finding("bad", f"{announced['file']} ends at {at}: it is being written")
        update(data)
        written = 0
        while written < len(data):
            written += os.pwrite(writing, data[written:], at + written)
        at += len(data)
        pace.note(len(data))
    return value()


def _is_there(target: Path, announced: dict[str, Any], pace: Pace) -> bool:
    """True if an earlier copy with the same content is there."""
    try:
        return read_file(str(target), announced, True, pace)
    except (OSError, Finding):
        return False
