"""Deletes the files of a checkpoint that are what was announced, unless it is pinned."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from understudy_agent.files.announced import WRITTEN_AFTER_SECONDS, Finding

PIN = ".keep"
"""A file in a checkpoint's folder that keeps it from being deleted; beside a checkpoint of one file, with its name."""


def delete(task: dict[str, Any]) -> str:
    """Looks whether all files can go, and deletes them unless it is to look only: then some may be gone, from a time
    before. Raises Finding.
    """
    path, announced, also = Path(task["path"]), task["files"], not task["only_look"]
    pin = next((one for one in (path / PIN, path.with_name(path.name + PIN)) if os.path.lexists(one)), None)
    if pin is not None:
        raise Finding("unseen", f"{pin} pins it")
    there = [path / one["file"] for one in announced if not (also and not os.path.lexists(path / one["file"]))]
    for one in announced:
        if path / one["file"] in there:
            _check_deletable(path / one["file"], one)
    if not also:
        return "deletable"
    for place in there:
        place.unlink(missing_ok=True)
    for folder in sorted({parent for place in there for parent in _folders(place, path)}, reverse=True):
        with contextlib.suppress(OSError):  # other files are in it
            folder.rmdir()
    return "deleted"


def _check_deletable(place: Path, announced: dict[str, Any]) -> None:
    """Raises Finding for anything but the file that was announced."""
    try:
        found = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise Finding("lost", f"{place} is not there") from None
    what = "" if stat.S_ISREG(found.st_mode) else "is no file"
    if found.st_uid != os.geteuid():
        what = "belongs to another user"
    elif not what and found.st_size != announced["size_bytes"]:
        what = f"has {found.st_size} bytes, {announced['size_bytes']} were announced"
    elif not what and found.st_mtime > announced["at"] + WRITTEN_AFTER_SECONDS:
        what = "was written again after it was announced"
    if what:
        raise Finding("suspect", f"{place} {what}")


def _folders(place: Path, path: Path) -> list[Path]:
    """Folders of a file, within the checkpoint's own folder."""
    return [one for one in place.parents if one.is_relative_to(path)]
