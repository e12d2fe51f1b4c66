"""The callback for Hugging Face's Trainer.

callback = UnderstudyCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint())
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.trainer_callback import TrainerCallback

from .checkpoints import Save
from .framework_callback import FrameworkCallback
from .monitor import STOP, Monitor
from .never_raise import never_raise, warn_once
from .shard_files import files_of

BY_STEPS, BY_EPOCHS = "steps", "epoch"
"""Values of save_strategy for which the callback says when to save."""


class UnderstudyCallback(FrameworkCallback, TrainerCallback):
    """Times optimizer steps, says when to save, announces checkpoints when they are written, and asks for the restore
    point.

    A step is what the Trainer calls one: all the batches that it accumulates, and the optimizer's update. Loading
    data, evaluation, logging and the writing of checkpoints are not in it. What lies between two steps without the last
    three is waiting for data.
    """

    def __init__(self, monitor: Monitor | None = None, save_when_due: bool = True) -> None:
        """Create it early: the agent then knows that this rank is starting. `save_when_due`: the Trainer also saves
        when the control plane orders it, besides each multiple of `save_steps`.
        """
        super().__init__(monitor)
        self._save_when_due = save_when_due
        self._save: Save | None = None

    def resume_from_checkpoint(self, otherwise: str | bool | None = STOP) -> str | bool | None:
        """The checkpoint to continue from, for Trainer.train; None to start from the beginning, as nothing was ever
        saved. The same on every rank.

        If it is not known, RestorePointUnknownError is raised; or `otherwise` is the result, where it is given. Outside
        of Slurm it is the beginning, or `otherwise`: a path, True for the last checkpoint in the output directory
        (there must be one), or None for the beginning.
        """
        path: str | bool | None = self._continue_from(otherwise)
        return path

    # -- called by the Trainer ---------------------------------------------------------------------------------

    @never_raise
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        in_ddp = dist.is_available() and dist.is_initialized() and not args.fsdp and not args.deepspeed
        self._begin_training(kwargs.get("model") if in_ddp else None)

    @never_raise
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_training()

    @never_raise
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_evaluation()  # one that failed and was caught has no end of its own
        if self._ended_at is not None:
            self._monitor.waited_for_data(time.perf_counter() - self._ended_at)
        self._begin_step(state.global_step)

    @never_raise
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_step()
        self._ended_at = time.perf_counter()
        self._ask(args, state, control)
        self._begin(args, state, control)

    @never_raise
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin(args, state, control)

    def _ask(self, args: Any, state: Any, control: Any) -> None:
        """The Trainer's own multiples of save_steps count as `every`, and it saves them by itself."""
        if not self._save_when_due or args.save_strategy not in (BY_STEPS, BY_EPOCHS):
            return
        every = int(getattr(state, "save_steps", 0) or 0) if args.save_strategy == BY_STEPS else 0
        if self._monitor.checkpoints.due(state.global_step, every):
            control.should_save = True

    def _begin(self, args: Any, state: Any, control: Any) -> None:
        self._save = self._new_save(args, state) if control.should_save and _can_continue_from(args) else None

    def _new_save(self, args: Any, state: Any) -> Save:
        layout = "fixed" if args.deepspeed else "" if args.fsdp else "reshardable"
        return self._monitor.checkpoints.begin(state.global_step, _folder(args, state), layout)

    @never_raise
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin_evaluation()

    @never_raise
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_evaluation()
        if self._save is not None:  # the Trainer saves after the evaluation, which is no part of it
            self._save = self._new_save(args, state)

    @never_raise
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self._end_evaluation()

    @never_raise
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._ended_at = None
        logs = kwargs.get("logs") or {}
        if "grad_norm" in logs:  # of training, not of evaluation
            self._monitor.observe(logs.get("loss"), logs["grad_norm"])

    @never_raise
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called on every rank when it has written its part; the Trainer's own state is rank 0's last file."""
        self._ended_at = None
        path, save = _folder(args, state), self._save
        self._save = None
        if not _can_continue_from(args):
            warn_once("save", "checkpoints without optimizer, or with a copy on each node, are not announced: %s", path)
            return
        if save is None:  # another callback asked for it
            save = self._new_save(args, state)
            save.clock.forget()
        for name in files_of(path, args.process_index):
            save.shard(name)
        save.commit()
        self._announce_deleted(args, path, state.global_step)

    def _announce_deleted(self, args: Any, path: str, step: int) -> None:
        """What the Trainer has deleted by save_total_limit."""
        if args.process_index != 0:
            return
        for known in [one for one in self._saved if not os.path.exists(one)]:
            self._monitor.checkpoints.deleted(self._saved.pop(known), known)
        self._saved[path] = step


def _folder(args: Any, state: Any) -> str:
    return str(Path(args.output_dir or ".").absolute() / f"checkpoint-{state.global_step}")


def _can_continue_from(args: Any) -> bool:
    return not (args.save_only_model or args.save_on_each_node)
