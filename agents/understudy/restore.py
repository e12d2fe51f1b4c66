"""The place where a gang continues, as the control plane decided it: a checkpoint, the beginning, or not known."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from .file_system import file_size, is_object, place_of

NO_SIZES: Mapping[str, int] = {}

LOOKS = 3
LOOK_AGAIN_SECONDS = 1.0
"""A network file system may show a new file late."""


class RestorePoint(NamedTuple):
    """Step 0 and an empty path mean from the beginning, because nothing was ever saved."""

    step: int
    path: str


class RestorePointUnknownError(Exception):
    """It is not known whether there is a checkpoint to restore; `cause` says why."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"where to continue is not known: {cause}. The job stops here, because a start from the beginning could "
            "throw work away. Repair the cause and start the job again, or pass otherwise=..., which is returned then"
        )
        self.cause = cause


class DamagedFileError(Exception):
    """A file is shorter or longer than what was saved."""


def read_point(answer: dict[str, Any]) -> RestorePoint:
    """Raises RestorePointUnknownError for an answer that makes no sense."""
    step, path = answer.get("step"), answer.get("path")
    if not isinstance(step, int) or not isinstance(path, str):
        raise RestorePointUnknownError(f"the agent's answer makes no sense: {answer}")
    return RestorePoint(step, path)


def nearest(point: RestorePoint, answer: dict[str, Any]) -> RestorePoint:
    """The point with this rank's copy on its own node, where it is still there."""
    path, file = answer.get("nearer_path"), answer.get("nearer_file")
    if isinstance(path, str) and isinstance(file, str) and path and os.path.isfile(place_of(path, file)):
        return RestorePoint(point.step, path)
    return point


def fetched(point: RestorePoint, answer: dict[str, Any]) -> RestorePoint:
    """The point with a path on this node, where the checkpoint is in an object store. Raises ObjectStoreError and
    OSError.
    """
    if not is_object(point.path):
        return point
    from .objects import fetch

    files = answer.get("files")
    return RestorePoint(point.step, fetch(point.path, files if isinstance(files, list) else ()))


def hook_failed(error: Exception) -> RestorePointUnknownError:
    return RestorePointUnknownError(f"the hook failed: {error!r}")


def is_there(path: str, file: str = "", sizes: Mapping[str, int] = NO_SIZES) -> bool:
    """True if the checkpoint is there, or this file of it, and its files have the sizes with which they were announced.
    Raises ObjectStoreError, and DamagedFileError where only a size differs.
    """
    place = place_of(path, file)
    if is_object(path):
        from .objects import is_there as is_in_store  # an import that takes longer than all of the hook

        return is_in_store(place)
    other = ""
    for number in range(LOOKS):
        if number:
            time.sleep(LOOK_AGAIN_SECONDS)
        try:
            os.lstat(place)
            other = _of_other_size(path, sizes)
            if not other:
                return True
        except OSError:
            other = ""
        try:
            os.listdir(os.path.dirname(place))  # NFS reads the directory again
        except OSError:
            continue
    if other:
        raise DamagedFileError(other)
    return False


def _of_other_size(path: str, sizes: Mapping[str, int]) -> str:
    """The first file that is not as long as it was, in words; empty: none. Other nodes may have what is not here."""
    for name, announced in sizes.items():
        try:
            size = file_size(path, name)
        except OSError:
            continue
        if size != announced:
            return f"{place_of(path, name)} has {size} bytes, and {announced} were saved"
    return ""


def is_of_gang(error: object) -> bool:
    """The restore was broken off because another rank is gone, which says nothing of the checkpoint."""
    return isinstance(error, ConnectionError) or type(error).__name__.startswith("Dist")


class UncaughtErrors:
    """An exception that ends this process between start() and stop() is reported first."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._before: Any = None

    def start(self) -> None:
        if self._before is None:
            self._before, sys.excepthook = sys.excepthook, self._take

    def stop(self) -> None:
        if self._before is not None:
            sys.excepthook, self._before = self._before, None

    def _take(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before = self._before
        self.stop()
        if issubclass(kind, Exception):
            self._report(error)
        before(kind, error, trace)
