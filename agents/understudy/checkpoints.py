"""`monitor.checkpoints`: a rank's part of a checkpoint, from its begin until it is announced.

with monitor.checkpoints.begin(step, directory) as save:
    ...                              # write any number of files
    save.shard("model-0.pt")
    save.shard("optimizer-0.pt")
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, SupportsInt

from .never_raise import log

if TYPE_CHECKING:
    from .monitor import Monitor
    from .restore import RestorePoint

KEPT = 2
"""The newest that this rank has announced: the newest one may not be complete on the other ranks."""


class Checkpoints:
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._written: list[str] = []
        self._lock = threading.Lock()

    def restore(self, timeout_seconds: float = 60.0) -> AbstractContextManager[RestorePoint]:
        """As Monitor.restore."""
        return self._monitor.restore(timeout_seconds)

    def begin(self, step: SupportsInt, path: str | os.PathLike[str]) -> Save:
        """This rank begins to write its part of a checkpoint. Training continues with `step` after a restore. `path` is
        a directory that all ranks share, or a checkpoint of one file. What is announced of it counts from commit() on,
        which may be called by another thread.
        """
        return Save(self._monitor, self._note, step, path)

    def deleted(self, step: SupportsInt, path: str | os.PathLike[str]) -> None:
        """The training deletes this checkpoint: it is not restored any more. Call it on one rank, before the files
        go.
        """
        where = os.path.abspath(path)
        with self._lock:
            self._written = [one for one in self._written if one != where]
        self._monitor._announce_deleted(step, path)

    @property
    def pinned(self) -> frozenset[str]:
        """Paths that a rotation must keep: of the checkpoint that this attempt restored, until there are newer ones,
        and of the last two that this rank has announced.
        """
        with self._lock:
            written = self._written[-KEPT:]
        restored = self._monitor._restored
        first = {restored.path} if restored is not None and restored.path and len(written) < KEPT else set()
        return frozenset({*written, *first})

    def _note(self, path: str) -> None:
        with self._lock:
            self._written = [*(one for one in self._written if one != path), path][-KEPT:]


class Save:
    """A rank's part of one checkpoint. As a context: committed at the end of the block, aborted by an exception."""

    def __init__(
        self, monitor: Monitor, note: Callable[[str], None], step: SupportsInt, path: str | os.PathLike[str]
    ) -> None:
        self.step, self.path = step, path
        self._monitor, self._note = monitor, note
        self._files: list[tuple[str, str]] = []
        self._over = False

    def shard(self, file: str = ".", checksum: str = "") -> None:
        """A file that this rank has written: its name in the directory; "." is the path itself. `checksum` is that of a
        SummedFile.
        """
        self._files.append((str(file), checksum))

    def none(self) -> None:
        """This rank has no file in this checkpoint: other ranks wrote its part."""
        self._files.clear()

    def commit(self) -> None:
        """All files of this rank are written, and do not change any more."""
        if self._over:
            return
        self._over = True
        self._note(os.path.abspath(self.path))
        self._monitor._announce_files(self.step, self.path, self._files or [("", "")])

    def abort(self, why: object = "") -> None:
        """The checkpoint is not written: nothing of this rank is announced, so that it is never complete."""
        if not self._over:
            self._over = True
            log.warning("understudy: the checkpoint of step %s in %s is not written: %s", self.step, self.path, why)

    def __enter__(self) -> Save:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.abort(repr(error))
