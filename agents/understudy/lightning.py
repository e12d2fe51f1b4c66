"""Lightning's callback, for `lightning` and for `pytorch_lightning` 2.

callback = UnderstudyCallback()
trainer = Trainer(callbacks=[callback, …])
trainer.fit(model, ckpt_path=callback.ckpt_path())
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ddp import Watch, watch_ddp
from .monitor import STOP, Monitor
from .never_raise import never_raise, warn_once
from .restore import UncaughtErrors

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


class UnderstudyCallback(Callback):
    """Times optimizer steps, announces checkpoints when they are written, and asks for the restore point.

    A step goes from the start of its first batch to the end of its last; loading data, validation and the writing of
    checkpoints are not in it. What lies between two batches without the last two is waiting for data.
    """

    def __init__(self, monitor: Monitor | None = None) -> None:
        """Create it early: the agent then knows that this rank is starting."""
        self._monitor = monitor or Monitor()
        self._step: AbstractContextManager[None] | None = None
        self._number = 0
        self._watch: Watch | None = None
        self._own_save = False
        self._evaluation: AbstractContextManager[None] | None = None
        self._ended_at: float | None = None
        """Of the last batch, if nothing but data has been waited for since."""
        self._restore = UncaughtErrors(self._monitor.restore_failed)

    def ckpt_path(self, otherwise: str | None = STOP) -> str | None:
        """For Trainer.fit: the checkpoint to continue from; None to start from the beginning, as nothing was ever
        saved. The same on every rank.

        Where it is not known, as outside of a Slurm job, RestorePointUnknownError is raised; or `otherwise` is the
        result, where it is given: a path, "last", or None for
        the beginning.
        """
        ask = self._monitor.restore_point
        point = ask() if otherwise is STOP else ask(otherwise=None)
        if point is None:
            return otherwise
        if point.path:
            self._restore.start()
        return point.path or None

    # -- called by Lightning -----------------------------------------------------------------------------------

    @never_raise
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and self._monitor.active and not self._own_save:
            # Lightning calls callbacks before it writes a checkpoint, and not after.
            trainer.save_checkpoint = self._announcing(trainer, trainer.save_checkpoint)
            self._own_save = True

    @never_raise
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._own_save:
            self._own_save = False
            del trainer.save_checkpoint

    @never_raise
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore.stop()

    @never_raise
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore.stop()
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            self._watch = watch_ddp(self._monitor, model)

    @never_raise
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._step = None
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    @never_raise
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        ended_at, self._ended_at = self._ended_at, None
        if ended_at is not None:
            self._monitor.waited_for_data(time.perf_counter() - ended_at)
        if self._step is None:
            self._number = trainer.global_step
            step = self._monitor.step(self._number)
            step.__enter__()
            self._step = step

    @never_raise
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._step is not None and trainer.global_step > self._number:  # else more batches are accumulated
            step, self._step = self._step, None
            step.__exit__(None, None, None)
        self._ended_at = time.perf_counter()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._step = None
        self._end_evaluation()

    @never_raise
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._ended_at = None
        self._end_evaluation()
        self._evaluation = self._monitor.section("evaluation")
        self._evaluation.__enter__()

    @never_raise
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _announcing(self, trainer: Any, save: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(filepath: Any, weights_only: bool | None = None, *args: Any, **kwargs: Any) -> None:
            before = self._is_there(filepath)
            save(filepath, weights_only, *args, **kwargs)  # all ranks; behind a barrier when it returns
            self._ended_at = None
            if not weights_only:
                self._announce(trainer, filepath, before)

        return save_checkpoint

    @never_raise
    def _is_there(self, filepath: Any) -> bool:
        return Path(filepath).exists()

    @never_raise
    def _announce(self, trainer: Any, filepath: Any, written_over: bool | None) -> None:
        path = Path(filepath).absolute()
        rank = trainer.global_rank
        if any("Async" in kind.__name__ for kind in type(trainer.strategy.checkpoint_io).__mro__):
            warn_once("async", "checkpoints that are written in the background are not announced: %s", path)
            return
        if path.is_dir():  # a sharded strategy: torch's distributed checkpoint names its shards so
            shard = f"__{rank}_0.distcp"
            file = shard if (path / shard).exists() else None
        elif rank != 0:
            file = None
        elif written_over or path.stem == "last":
            warn_once("over", "%s is overwritten each time: it is not announced", path)
            return
        elif not path.exists():
            warn_once("late", "%s does not exist after Lightning saved it: it is not announced", path)
            return
        else:
            file = "."
        self._monitor.checkpoint_saved(trainer.global_step, path, file)
