"""A step that is computed again, now and then, on one replica, and compared bit for bit: a GPU that computes wrong
without an error shows itself by it. Off unless the training asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Union

import torch

from .monitor import Monitor
from .never_raise import never_raise, warn_once
from .state_pickle import as_bytes

Computed = Union[torch.Tensor, Iterable[torch.Tensor]]

EVERY_MIN = 10

CALIBRATION_RUNS = 3
"""Runs of the first check: a program whose results differ from run to run shows nothing about the GPU."""


class Recompute:
    """Every rank of a gang makes one. A check costs two runs of what it is given, on one replica for which the others
    wait, and memory for one copy of the result: with `every=1000` about 0.2 % of the time of steps.
    """

    def __init__(self, monitor: Monitor, every: int = 1000, replica: int = 0, replicas: int = 1) -> None:
        """`replica` of `replicas` is this rank's (its data-parallel rank): they take turns."""
        self._monitor = monitor
        self._every = max(EVERY_MIN, every)
        self._turn = replica % max(1, replicas), max(1, replicas)
        self._is_calibrated = False
        self._is_off = False

    def is_due(self) -> bool:
        """True if the step under way is one that this replica computes again."""
        number = self._monitor.step_number
        if self._is_off or number is None or not self._monitor.active:
            return False
        turn, replicas = self._turn
        return number % self._every == 0 and number // self._every % replicas == turn

    @never_raise
    def check(self, compute: Callable[[], Computed]) -> None:
        """Call it in every step, before the optimizer changes the weights. `compute` returns tensors, such as the loss
        and gradients; it must change nothing, and exchange nothing with other replicas. Where the step is due, it runs
        twice from the same state of the random numbers, which is restored.
        """
        if not self.is_due():
            return
        number = self._monitor.step_number
        assert number is not None
        _synchronize()
        begun = perf_counter()
        try:
            self._check(number, compute)
        finally:
            self._monitor.waited(perf_counter() - begun)  # it is none of the rank's own time

    def _check(self, number: int, compute: Callable[[], Computed]) -> None:
        first = _run(compute)
        if not self._is_calibrated:
            if all(_same(first, _run(compute)) for _ in range(CALIBRATION_RUNS - 1)):
                self._is_calibrated = True
            else:
                self._end("its first check")
            return
        second = _run(compute)
        if _same(first, second):
            return
        third = _run(compute)
        if _same(first, third) or _same(second, third):
            self._monitor.note_wrong_result(number, "one run of three differs")
        else:
            self._end(f"step {number}")

    def _end(self, when: str) -> None:
        self._is_off = True
        warn_once("recompute", "no step is computed again: the results of %s differ from run to run", when)


def _run(compute: Callable[[], Computed]) -> list[torch.Tensor]:
    """A copy of the bits."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        found = compute()
        tensors = [found] if isinstance(found, torch.Tensor) else list(found)
        return [one.detach().clone(memory_format=torch.contiguous_format) for one in tensors]


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit for bit: NaN equals itself, and 0 differs from -0."""
    pairs = list(zip(some, others))
    alike = len(some) == len(others) and all(one.dtype == other.dtype for one, other in pairs)
    return alike and all(torch.equal(as_bytes(one), as_bytes(other)) for one, other in pairs)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
