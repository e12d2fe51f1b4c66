"""`monitor.checkpoints`: when to save, and a rank's part of a checkpoint, from its begin until it is announced.

if monitor.checkpoints.due(step):
    with monitor.checkpoints.begin(step, directory) as save:
        ...                              # write any number of files
        save.shard("model-0.pt")
        save.shard("optimizer-0.pt")
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, SupportsInt, TypeVar, Union, overload

from .file_system import TIERS, absolute, full
from .never_raise import log
from .outbox import step_number

if TYPE_CHECKING:
    from .monitor import Monitor
    from .restore import RestorePoint

Other = TypeVar("Other")

NOTHING: Mapping[str, str] = {}

CopyTo = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]

COPY_TO = "UNDERSTUDY_COPY_TO"

LAYOUTS = ("", "fixed", "reshardable")

KEPT = 2
"""The newest that this rank has announced: the newest one may not be complete on the other ranks."""


class Checkpoints:
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._written: list[str] = []
        self._lock = threading.Lock()
        self._blocking: Save | None = None
        """The save that may hold the training up."""

    def due(self, step: SupportsInt, every: int = 0) -> bool:
        """True: save now, with a checkpoint with which training continues with `step`. Call it on every rank, each
        time with a larger step: all ranks of a gang get the same answer for the same step. It reads what was agreed
        before and costs less than a microsecond.

        The control plane orders the steps: by what a checkpoint costs and how often the gang fails, before the job's
        time limit, before the gang leaves a node, and when a person asks for it. Each multiple of `every`, the same
        on all ranks, is due besides, also where there is no agent.
        """
        return self._due(step, every, in_memory=False)

    def _due(self, step: SupportsInt, every: int, in_memory: bool) -> bool:
        if self._blocking is not None:
            self.note_training()
        try:
            return self._monitor._outbox.save_steps.due(step if type(step) is int else int(step), every, in_memory)
        except Exception as error:  # noqa: BLE001 - a fault in the hook is no reason to end the training
            log.warning("understudy: whether a checkpoint is due before step %r is not known: %r", step, error)
            return False

    @overload
    def restore(self, timeout_seconds: float | None = None) -> AbstractContextManager[RestorePoint]: ...

    @overload
    def restore(
        self, timeout_seconds: float | None = None, *, otherwise: Other
    ) -> AbstractContextManager[RestorePoint | Other]: ...

    @contextlib.contextmanager
    def restore(self, timeout_seconds: float | None = None, **otherwise: Any) -> Iterator[Any]:
        """Yields Monitor.restore_point(), and reports an exception in the block with restore_failed()."""
        point = self._monitor.restore_point(timeout_seconds, **otherwise)
        try:
            yield point
        except Exception as error:
            self._monitor.restore_failed(error)
            raise

    def begin(
        self,
        step: SupportsInt,
        path: str | os.PathLike[str],
        layout: str = "",
        tier: str = "",
        copy_to: CopyTo = "",
    ) -> Save:
        """This rank begins to write its part of a checkpoint. Training continues with `step` after a restore. `path` is
        a directory that all ranks share, or a checkpoint of one file. What is announced of it counts from commit() on,
        which may be called by another thread.

        `layout` is "reshardable" where a gang of any size can restore it, "fixed" where only one of as many ranks can.
        `tier` is "local" where no other node sees the path, "shared" where all do; by default the type of the file
        system says which. `copy_to`, the same on all ranks, is where the agents copy it once it is complete: from
        disks of its nodes to a directory on a shared file system, or a file where `path` is one; and to a place in an
        object store, as "s3://BUCKET/PLACE". Of two, the copy at the first is copied to the second. By default what
        UNDERSTUDY_COPY_TO names, with a comma between two and `{step}` for the step.
        """
        if layout not in LAYOUTS:
            log.warning('understudy: layout is "fixed" or "reshardable", and not %.50r: it counts as not known', layout)
            layout = ""
        if tier not in TIERS:
            log.warning('understudy: tier is "local" or "shared", and not %.50r: the file system says which', tier)
            tier = ""
        copies = [copy_to] if isinstance(copy_to, (str, os.PathLike)) else list(copy_to)
        if not any(copies):
            named_copies = [one.strip() for one in os.environ.get(COPY_TO, "").split(",")]
            number = step_number(step)
            copies = [one.replace("{step}", str(number)) for one in named_copies] if number is not None else []
        first, second = ([absolute(one) if one else "" for one in copies] + ["", ""])[:2]
        named = {"layout": layout, "tier": tier, "copy_to": first, "then_copy_to": second}
        save = Save(self._monitor, self._note, step, path, named)
        self._blocking = save
        return save

    def note_training(self) -> None:
        """The training goes on: it is not held up by a save any more."""
        save, self._blocking = self._blocking, None
        if save is not None:
            save.clock.release()

    def deleted(self, step: SupportsInt, path: str | os.PathLike[str]) -> None:
        """The training deletes this checkpoint: it is not restored any more. Call it on one rank, before the files
        go.
        """
        where = absolute(path)
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

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _note(self, path: str) -> None:
        with self._lock:
            self._written = [*(one for one in self._written if one != path), path][-KEPT:]


class SaveClock:
    """How long a save takes, and for how much of that it holds the training up."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._thread = threading.get_ident()
        self._in_training = threading.current_thread() is threading.main_thread()
        self._released: float | None = None
        self._known = True

    def forget(self) -> None:
        """It was begun after the writing."""
        self._known = False

    def release(self) -> None:
        if self._released is None and threading.get_ident() == self._thread:
            self._released = time.perf_counter()

    def measured(self) -> dict[str, float]:
        """Called at its end. Leaves out what is not known: a save that begins in another thread may have held the
        training up before.
        """
        if not self._known:
            return {}
        now = time.perf_counter()
        seconds = {"write_seconds": round(now - self._begun, 6)}
        if self._in_training and (self._released is not None or threading.get_ident() == self._thread):
            seconds["blocked_seconds"] = round((self._released or now) - self._begun, 6)
        return seconds


class Save:
    """A rank's part of one checkpoint. As a context: committed at the end of the block, aborted by an exception."""

    def __init__(
        self,
        monitor: Monitor,
        note: Callable[[str], None],
        step: SupportsInt,
        path: str | os.PathLike[str],
        named: Mapping[str, str] = NOTHING,
    ) -> None:
        """`named` are further fields of what is announced; empty ones are left out."""
        self.step, self.path = step, path
        self._named = {name: value for name, value in named.items() if value}
        self.clock = SaveClock()
        self._monitor, self._note = monitor, note
        self._files: list[tuple[str, str]] = []
        self._over = False

    @property
    def is_over(self) -> bool:
        """Committed or aborted."""
        return self._over

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
        self._note(absolute(self.path))
        more: dict[str, object] = {**self.clock.measured(), **self._named}
        self._monitor._announce(self.step, self.path, self._files or [("", "")], more)

    def abort(self, why: object = "") -> None:
        """The checkpoint is not written: nothing of this rank is announced, so that it is never complete."""
        if not self._over:
            self._over = True
            text = "understudy: the checkpoint of step %s in %s is not written: %s"
            log.warning(text, self.step, self.path, full(self.path) or why)

    def __enter__(self) -> Save:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.commit()
        else:
            self.abort(repr(error))
