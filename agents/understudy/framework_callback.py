"""What the callbacks of Lightning and of the Hugging Face Trainer share: steps, evaluations, and the restore."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from .ddp import Watch, watch_ddp
from .monitor import Monitor
from .restore import RestorePoint, UncaughtErrors


class FrameworkCallback:
    def __init__(self, monitor: Monitor | None) -> None:
        self._monitor = monitor or Monitor()
        self._step: AbstractContextManager[None] | None = None
        self._evaluation: AbstractContextManager[None] | None = None
        self._watch: Watch | None = None
        self._restore = UncaughtErrors(self._monitor.restore_failed)
        self._ended_at: float | None = None
        """End of the last step, or batch, if nothing but data has been waited for since."""
        self._saved: dict[str, int] = {}
        """Path → step of what this process announced and the framework has not deleted."""

    def _continue_from(self, otherwise: Any) -> Any:
        """Path of the checkpoint, None for the beginning, or `otherwise`. Raises RestorePointUnknownError."""
        point = self._monitor.restore_point(otherwise=otherwise)
        if not isinstance(point, RestorePoint):
            return point
        if point.path:
            self._restore.start()
        return point.path or None

    def _begin_training(self, model: Any) -> None:
        """`model`: the one in DDP; None: there is none."""
        self._restore.stop()
        if model is not None:
            self._watch = watch_ddp(self._monitor, model)

    def _end_training(self) -> None:
        self._step = None
        if self._watch is not None:
            self._watch.remove()
            self._watch = None

    def _begin_step(self, number: int) -> None:
        step = self._monitor.step(number)
        step.__enter__()
        self._step = step

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _begin_evaluation(self) -> None:
        self._ended_at = None
        if self._evaluation is None:
            self._evaluation = self._monitor.section("evaluation")
            self._evaluation.__enter__()

    def _end_evaluation(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)
