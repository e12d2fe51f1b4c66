"""A test of the GPU under a training, between two of its steps: how long the same matrix multiplication takes.

A rank that is slow may have a slow GPU, a slow host, or more to do. All ranks do the same multiplication after the same
steps, so the times of a gang show whether it is the GPU. Off unless the training asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from .monitor import Monitor
from .never_raise import never_raise, warn_once

REPEATS = 10
"""The shortest counts: other work of the GPU or the host only makes one longer."""

SIZE_ON_GPU = 4096
SIZE_ON_CPU = 256
"""Rows and columns. On a GPU three matrices of 32 MiB in BF16 and, by the data sheet, 0.14 ms each on an H100."""

EVERY_MIN = 10


class ComputeTest:
    """What watch_compute() registered; remove() ends it."""

    def __init__(self, monitor: Monitor, every: int, multiply: Callable[[], Multiplication]) -> None:
        self._monitor = monitor
        self._every = max(EVERY_MIN, every)
        self._multiply = multiply
        self._pending: tuple[int, Multiplication] | None = None
        monitor.watch(self.settle)

    def remove(self) -> None:
        self._monitor.unwatch(self.settle)

    @never_raise
    def settle(self) -> None:
        """At the end of each step."""
        if self._pending is not None:
            step, running = self._pending
            seconds = running.seconds()
            if seconds is not None:
                self._pending = None
                self._monitor.note_compute(step, seconds)
        number = self._monitor.step_number
        if number is not None and number % self._every == 0:
            begun = perf_counter()
            self._pending = (number, self._multiply())
            self._monitor.waited(perf_counter() - begun)  # it is none of the rank's own time


class Multiplication:
    """On the host: it is done when this is made."""

    def __init__(self, matrices: Sequence[torch.Tensor]) -> None:
        one, other, product = matrices
        self._times = []
        for _ in range(REPEATS):
            begun = perf_counter()
            torch.mm(one, other, out=product)
            self._times.append(perf_counter() - begun)

    def seconds(self) -> float | None:
        """Of one; None: it is under way."""
        return min(self._times)


class GpuMultiplication(Multiplication):
    """On a GPU's stream, behind what is queued there. Nothing is synchronised for it."""

    def __init__(self, matrices: Sequence[torch.Tensor], event: Callable[[], Any]) -> None:
        one, other, product = matrices
        self._events = [event() for _ in range(REPEATS + 1)]
        self._events[0].record()
        for done in self._events[1:]:
            torch.mm(one, other, out=product)
            done.record()

    def seconds(self) -> float | None:
        if not self._events[-1].query():
            return None
        pairs = zip(self._events, self._events[1:])
        return min(float(begun.elapsed_time(done)) for begun, done in pairs) / 1000


def watch_compute(monitor: Monitor, every: int = 500, device: str | torch.device | None = None) -> ComputeTest | None:
    """From now on a short multiplication runs after each step whose number is a multiple of `every`, on `device`; by
    default the current GPU, or the CPU where there is none. It costs about 2 ms on a GPU, and 100 MiB of its memory.
    None: it cannot run here, or the monitor is not active.
    """
    try:
        if not monitor.active:
            return None
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        on_gpu = where.type == "cuda"
        size, kind = (SIZE_ON_GPU, torch.bfloat16) if on_gpu else (SIZE_ON_CPU, torch.float32)
        matrices = [torch.ones(size, size, device=where, dtype=kind) for _ in range(3)]

        def multiply() -> Multiplication:
            with torch.no_grad():
                if not on_gpu:
                    return Multiplication(matrices)
                return GpuMultiplication(matrices, functools.partial(torch.cuda.Event, enable_timing=True))

        multiply()  # the first one loads what it needs
        return ComputeTest(monitor, every, multiply)
    except Exception as error:  # noqa: BLE001 - no memory is left, or a new torch: the training goes on
        warn_once("watch_compute", "the GPU is not tested between steps: %r", error)
        return None
