"""The callback for Hugging Face's Trainer.

callback = UnderstudyCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint())
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from .checkpoints import Save
from .ddp import Watch, watch_ddp
from .monitor import STOP, Monitor
from .never_raise import never_raise, warn_once
from .restore import RestorePoint, UncaughtErrors
from .shard_files import files_of

BY_STEPS, BY_EPOCHS = "steps", "epoch"
"""Values of save_strategy for which the callback says when to save."""


class UnderstudyCallback(TrainerCallback):
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
        self._monitor = monitor or Monitor()
        self._step: AbstractContextManager[None] | None = None
        self._watch: Watch | None = None
        self._evaluation: AbstractContextManager[None] | None = None
        self._ended_at: float | None = None
        """Of the last step, if nothing but data has been waited for since."""
        self._restore = UncaughtErrors(self._monitor.restore_failed)
        self._save_when_due = save_when_due
        self._save: Save | None = None
        self._saved: dict[str, int] = {}
        """Path → step of what this process announced and the Trainer has not deleted."""

    def resume_from_checkpoint(self, otherwise: str | bool | None = STOP) -> str | bool | None:
        """For Trainer.train: the checkpoint to continue from; None to start from the beginning, as nothing was ever
        saved. The same on every rank.

        Where it is not known, RestorePointUnknownError is raised; or `otherwise` is the result, where it is given.
        Outside of Slurm it is the beginning, or `otherwise`: a path, True for the last
        checkpoint in the output directory (there must be one), or None for the beginning.
        """
        point = self._monitor.restore_point(otherwise=otherwise)
        if not isinstance(point, RestorePoint):
            return point
        if point.path:
            self._restore.start()
        return point.path or None

    # -- called by the Trainer ---------------------------------------------------------------------------------

    @never_raise
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._restore.stop()
        model = kwargs.get("model")
        in_ddp = dist.is_available() and dist.is_initialized() and not args.fsdp and not args.deepspeed
        if model is not None and in_ddp:
            self._watch = watch_ddp(self._monitor, model)

    @never_raise
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step = None
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    @never_raise
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._end_evaluation()  # one that failed and was caught has no end of its own
        if self._ended_at is not None:
            self._monitor.waited_for_data(time.perf_counter() - self._ended_at)
        step = self._monitor.step(state.global_step)
        step.__enter__()
        self._step = step

    @never_raise
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)
        self._ended_at = time.perf_counter()
        self._ask(args, state, control)
        self._begin(args, state, control)

    @never_raise
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin(args, state, control)

    def _ask(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """The Trainer's own multiples of save_steps count as `every`, and it saves them by itself."""
        if not self._save_when_due or args.save_strategy not in (BY_STEPS, BY_EPOCHS):
            return
        every = int(getattr(state, "save_steps", 0) or 0) if args.save_strategy == BY_STEPS else 0
        if self._monitor.checkpoints.due(state.global_step, every):
            control.should_save = True

    def _begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        self._save = self._new_save(args, state) if control.should_save and _can_continue_from(args) else None

    def _new_save(self, args: TrainingArguments, state: TrainerState) -> Save:
        layout = "fixed" if args.deepspeed else "" if args.fsdp else "reshardable"
        return self._monitor.checkpoints.begin(state.global_step, _folder(args, state), layout)

    @never_raise
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._ended_at = None
        if self._evaluation is None:
            self._evaluation = self._monitor.section("evaluation")
            self._evaluation.__enter__()

    @never_raise
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._end_evaluation()
        if self._save is not None:  # the Trainer saves after the evaluation, which is no part of it
            self._save = self._new_save(args, state)

    @never_raise
    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    @never_raise
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._ended_at = None
        logs = kwargs.get("logs") or {}
        if "grad_norm" in logs:  # of training, not of evaluation
            self._monitor.observe(logs.get("loss"), logs["grad_norm"])

    @never_raise
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
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

    def _announce_deleted(self, args: TrainingArguments, path: str, step: int) -> None:
        """What the Trainer has deleted by save_total_limit."""
        if args.process_index != 0:
            return
        for known in [one for one in self._saved if not os.path.exists(one)]:
            self._monitor.checkpoints.deleted(self._saved.pop(known), known)
        self._saved[path] = step


def _folder(args: TrainingArguments, state: TrainerState) -> str:
    return str(Path(args.output_dir or ".").absolute() / f"checkpoint-{state.global_step}")


def _can_continue_from(args: TrainingArguments) -> bool:
    return not (args.save_only_model or args.save_on_each_node)
