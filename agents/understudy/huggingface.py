"""The callback for Hugging Face's Trainer.

callback = UnderstudyCallback()
trainer = Trainer(…, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint())
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from .ddp import Watch, watch_ddp
from .monitor import STOP, Monitor
from .never_raise import never_raise, warn_once
from .restore import UncaughtErrors


class UnderstudyCallback(TrainerCallback):
    """Times optimizer steps, announces checkpoints when they are written, and asks for the restore point.

    A step is what the Trainer calls one: all the batches that it accumulates, and the optimizer's update. Loading
    data, evaluation, logging and the writing of checkpoints are not in it. What lies between two steps without the last
    three is waiting for data.
    """

    def __init__(self, monitor: Monitor | None = None) -> None:
        """Create it early: the agent then knows that this rank is starting."""
        self._monitor = monitor or Monitor()
        self._step: AbstractContextManager[None] | None = None
        self._watch: Watch | None = None
        self._evaluation: AbstractContextManager[None] | None = None
        self._ended_at: float | None = None
        """Of the last step, if nothing but data has been waited for since."""
        self._restore = UncaughtErrors(self._monitor.restore_failed)

    def resume_from_checkpoint(self, otherwise: str | bool | None = STOP) -> str | bool | None:
        """For Trainer.train: the checkpoint to continue from; None to start from the beginning, as nothing was ever
        saved. The same on every rank.

        Where it is not known, as outside of a Slurm job, RestorePointUnknownError is raised; or `otherwise` is the
        result, where it is given: a path, True for the last
        checkpoint in the output directory (there must be one), or None for the beginning.
        """
        ask = self._monitor.restore_point
        point = ask() if otherwise is STOP else ask(otherwise=None)
        if point is None:
            return otherwise
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
        path = Path(args.output_dir or ".").absolute() / f"checkpoint-{state.global_step}"
        if args.save_only_model or args.save_on_each_node:
            warn_once("save", "checkpoints without optimizer, or with a copy on each node, are not announced: %s", path)
            return
        if args.process_index == 0:
            file = "trainer_state.json"
        elif (path / f"rng_state_{args.process_index}.pth").exists():
            file = f"rng_state_{args.process_index}.pth"
        else:
            file = ""
        self._monitor.checkpoint_saved(state.global_step, path, file or None)
