"""Lightning's callback, for `lightning` and for `pytorch_lightning` 2.

callback = UnderstudyCallback()
trainer = Trainer(callbacks=[callback, …])
trainer.fit(model, ckpt_path=callback.ckpt_path())
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoints import Save
from .framework_callback import FrameworkCallback
from .monitor import STOP, Monitor
from .never_raise import never_raise, warn_once
from .shard_files import files_of

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback

from torch.nn.parallel import DistributedDataParallel

STEM, SUFFIX = "step-", ".ckpt"
"""Around the number in the names of checkpoints that are saved because they are due."""


class UnderstudyCallback(FrameworkCallback, Callback):
    """Times optimizer steps, saves when that is due, announces checkpoints when they are written, and asks for the
    restore point.

    A step goes from the start of its first batch to the end of its last; loading data, validation and the writing of
    checkpoints are not in it. What lies between two batches without the last two is waiting for data.
    """

    def __init__(
        self,
        monitor: Monitor | None = None,
        save_to: str | os.PathLike[str] | None = None,
        every: int = 0,
        keep: int = 0,
    ) -> None:
        """Create it early: the agent then knows that this rank is starting. With `save_to`, a folder that all ranks
        share, it saves a checkpoint there whenever one is due: each `every` steps, until the control plane orders
        another interval, and when it orders one. It keeps the newest `keep` of them; 0: all.
        """
        super().__init__(monitor)
        self._number = 0
        self._own_save = False
        self._save_to = None if save_to is None else Path(save_to).absolute()
        self._every, self._keep = every, keep
        self._lock = threading.Lock()
        self._written_later: dict[str, Save] = {}
        self._written: set[str] = set()
        self._writer: Any = None
        """A plugin that writes in the background."""

    def ckpt_path(self, otherwise: str | None = STOP) -> str | None:
        """The checkpoint to continue from, for Trainer.fit; None to start from the beginning, as nothing was ever
        saved. The same on every rank.

        If it is not known, RestorePointUnknownError is raised; or `otherwise` is the result, where it is given. Outside
        of Slurm it is the beginning, or `otherwise`: a path, "last", or None for the beginning.
        """
        path: str | None = self._continue_from(otherwise)
        return path

    # -- called by Lightning -----------------------------------------------------------------------------------

    @never_raise
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._monitor.active and not self._own_save:
            # Lightning calls callbacks before it writes a checkpoint, and not after.
            trainer.save_checkpoint = self._announcing(trainer, trainer.save_checkpoint)
            trainer.strategy.remove_checkpoint = self._deleting(trainer.strategy.remove_checkpoint)
            self._own_save = True

    @never_raise
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._own_save:
            self._own_save = False
            del trainer.save_checkpoint, trainer.strategy.remove_checkpoint
            self._stop_watching_writer()

    @never_raise
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore.stop()

    @never_raise
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model = trainer.strategy.model
        self._begin_training(model if isinstance(model, DistributedDataParallel) else None)

    @never_raise
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_training()

    @never_raise
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        ended_at, self._ended_at = self._ended_at, None
        if ended_at is not None:
            self._monitor.waited_for_data(time.perf_counter() - ended_at)
        if self._step is None:
            self._number = trainer.global_step
            self._begin_step(self._number)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._end_batch(trainer):
            self._save_if_due(trainer)

    @never_raise
    def _end_batch(self, trainer: Any) -> bool:
        """True if a step has ended: else more batches are accumulated."""
        self._ended_at = time.perf_counter()
        if self._step is None or trainer.global_step <= self._number:
            return False
        self._end_step()
        return True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._step = None
        self._end_evaluation()

    @never_raise
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._end_evaluation()
        self._begin_evaluation()

    @never_raise
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_evaluation()

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _save_if_due(self, trainer: Any) -> None:
        if self._save_to is None or not self._due(trainer.global_step):
            return
        trainer.save_checkpoint(self._save_to / f"{STEM}{trainer.global_step:08d}{SUFFIX}")
        self._rotate(trainer)

    @never_raise
    def _due(self, step: int) -> bool:
        return self._monitor.checkpoints.due(step, self._every)

    @never_raise
    def _rotate(self, trainer: Any) -> None:
        if not self._keep or trainer.global_rank != 0 or self._save_to is None:
            return
        there = sorted(self._save_to.glob(f"{STEM}*{SUFFIX}"))
        pinned = self._monitor.checkpoints.pinned
        for path in there[: -self._keep]:
            step = path.name[len(STEM) : -len(SUFFIX)]
            if step.isdecimal() and str(path) not in pinned:
                self._saved[str(path)] = int(step)
                trainer.strategy.remove_checkpoint(path)

    def _announcing(self, trainer: Any, save: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(filepath: Any, weights_only: bool | None = None, *args: Any, **kwargs: Any) -> None:
            part = None if weights_only else self._begin(trainer, filepath)
            save(filepath, weights_only, *args, **kwargs)  # all ranks; behind a barrier when it returns
            self._ended_at = None
            if part is not None:
                self._finish(trainer, filepath, part)

        return save_checkpoint

    def _deleting(self, remove: Callable[..., Any]) -> Callable[..., Any]:
        def remove_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> None:
            self._announce_deleted(filepath)
            remove(filepath, *args, **kwargs)

        return remove_checkpoint

    @never_raise
    def _announce_deleted(self, filepath: Any) -> None:
        path = str(Path(filepath).absolute())
        if path in self._saved:
            self._monitor.checkpoints.deleted(self._saved.pop(path), path)

    @never_raise
    def _begin(self, trainer: Any, filepath: Any) -> Save | None:
        """None: it is not announced."""
        path = Path(filepath).absolute()
        if trainer.global_rank == 0 and not path.is_dir() and (path.exists() or path.stem == "last"):
            warn_once("over", "%s is overwritten each time: it is not announced", path)
            return None
        layout = "fixed" if "DeepSpeed" in type(trainer.strategy).__name__ else "reshardable"
        save = self._monitor.checkpoints.begin(trainer.global_step, path, layout)
        if trainer.global_rank == 0:
            self._saved[str(path)] = trainer.global_step
            self._watch_writer(trainer.strategy.checkpoint_io)
        return save

    @never_raise
    def _finish(self, trainer: Any, filepath: Any, save: Save) -> None:
        path = Path(filepath).absolute()
        self._monitor.checkpoints.note_training()
        if path.is_dir():  # a sharded strategy
            for name in files_of(path, trainer.global_rank):
                save.shard(name)
        elif trainer.global_rank == 0:
            if _is_async(trainer.strategy.checkpoint_io) and not self._is_written(str(path), save):
                return
            if not path.exists():
                warn_once("late", "%s does not exist after Lightning saved it: it is not announced", path)
                return
            save.shard()
        save.commit()

    def _is_written(self, path: str, save: Save) -> bool:
        """False: it is announced when it is, by the thread that writes."""
        with self._lock:
            if path in self._written:
                self._written.discard(path)
                return True
            self._written_later[path] = save
            return False

    def _watch_writer(self, checkpoint_io: Any) -> None:
        """What writes in the background calls this plugin for it."""
        if not _is_async(checkpoint_io):
            return
        writer = getattr(checkpoint_io, "checkpoint_io", None)
        if writer is None:
            warn_once("async", "checkpoints of %s are not announced", type(checkpoint_io).__name__)
        elif writer is not self._writer:
            self._stop_watching_writer()
            self._writer, writer.save_checkpoint = writer, self._committing(writer.save_checkpoint)

    def _committing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            write(checkpoint, path, *args, **kwargs)
            self._commit_written(path)

        return save_checkpoint

    @never_raise
    def _commit_written(self, path: Any) -> None:
        name = str(Path(path).absolute())
        with self._lock:
            save = self._written_later.pop(name, None)
            if save is None:  # the training has not gone on yet
                self._written.add(name)
                return
        save.shard()
        save.commit()

    def _stop_watching_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            del writer.save_checkpoint


def _is_async(checkpoint_io: Any) -> bool:
    return any("Async" in kind.__name__ for kind in type(checkpoint_io).__mro__)
