"""A test of the GPU under a training, between two of its steps: how long the same matrix multiplication takes.

A rank that is slow may have a slow GPU, a slow host, or more to do. All ranks do the same multiplication after the same
steps, so the times of a gang show whether it is the GPU. With a process group its ranks also sum the same numbers: a
group of the ranks of a node shows whether what joins its GPUs is slow. Off unless the training asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from .monitor import Monitor
from .never_raise import never_raise, warn_once

REPEATS = 10
"""The shortest counts: other work of the GPU or the host only makes one longer."""

SIZE_ON_GPU = 4096
SIZE_ON_CPU = 256
"""Rows and columns. On a GPU three matrices of 32 MiB in BF16 and, by the data sheet, 0.14 ms each on an H100."""

EVERY_MIN = 10

SUMS = 3
NUMBERS_ON_GPU, NUMBERS_ON_CPU = 2**23, 2**18
"""Summed by an all-reduce: 16 MiB of BF16 on a GPU."""


class ComputeTest:
    """What watch_compute() registered; remove() ends it."""

    def __init__(self, monitor: Monitor, every: int, multiply: Callable[[], Times]) -> None:
        self._monitor = monitor
        self.sum_up: Callable[[], Times] | None = None
        """An all-reduce, which all ranks of its group have agreed on."""
        self.every = max(EVERY_MIN, every)
        self._multiply = multiply
        self._pending: tuple[int, Times, Times | None] | None = None
        self._tested = False

    def remove(self) -> None:
        self._monitor.unwatch(self.settle)

    @never_raise
    def settle(self) -> None:
        """Called at the end of each step."""
        if self._pending is not None:
            step, running, summing = self._pending
            seconds, summed = running.seconds(), None if summing is None else summing.seconds()
            if seconds is not None and (summing is None or summed is not None):
                self._pending = None
                self._monitor.note_compute(step, seconds, summed)
        number = self._monitor.step_number
        if number is None:
            return
        is_agreed = number % self.every == 0
        if is_agreed or number == self._monitor.test_after or not self._tested:
            self._tested = True
            begun = perf_counter()
            # First: the other ranks of the group wait for it, whatever becomes of the rest. Not every rank may know of
            # an order, and not every rank begins with the same step.
            summing = self._summing() if is_agreed else None
            self._pending = (number, self._multiply(), summing)
            self._monitor.waited(perf_counter() - begun)  # it is none of the rank's own time

    def _summing(self) -> Times | None:
        if self.sum_up is None:
            return None
        try:
            return self.sum_up()
        except Exception as error:  # noqa: BLE001 - a peer is gone: this gang's end is not this test's matter
            self.sum_up = None
            warn_once("watch_compute", "the all-reduce between steps is not done any more: %r", error)
            return None


class Times:
    """Times of what is done several times on the host: it is done when this is made."""

    def __init__(self, do: Callable[[], object], repeats: int) -> None:
        self._times = []
        for _ in range(repeats):
            begun = perf_counter()
            do()
            self._times.append(perf_counter() - begun)

    def seconds(self) -> float | None:
        """The shortest time; None: it is under way."""
        return min(self._times)


class GpuTimes(Times):
    """The same on a GPU's stream, behind what is queued there. Nothing is synchronised for it."""

    def __init__(self, do: Callable[[], object], repeats: int, event: Callable[[], Any]) -> None:
        self._events = [event() for _ in range(repeats + 1)]
        self._events[0].record()
        for done in self._events[1:]:
            do()
            done.record()

    def seconds(self) -> float | None:
        if not self._events[-1].query():
            return None
        pairs = zip(self._events, self._events[1:])
        return min(float(begun.elapsed_time(done)) for begun, done in pairs) / 1000


def watch_compute(
    monitor: Monitor,
    every: int = 500,
    device: str | torch.device | None = None,
    group: dist.ProcessGroup | None = None,
) -> ComputeTest | None:
    """Runs a short multiplication after the first step, after each step whose number is a multiple of
    `every`, and after steps that the control plane chooses because a rank is slow. It runs on `device`; by default the
    current GPU, or the CPU where there is none. It costs about 2 ms on a GPU, and 100 MiB of its memory. None: it
    cannot run here, or the monitor is not active.

    With `group`, such as the ranks of a node, its ranks also do a short all-reduce after multiples of `every`. Then
    each of them has to call this, give its steps the same numbers, and end its last step before any closes its monitor:
    the others would wait for it. Where one of them cannot take part from the beginning, or has another `every`, none
    does.
    """
    test: ComputeTest | None = None
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device or where)
        if monitor.active:
            test = ComputeTest(monitor, every, _multiplications(where))
    except Exception as error:  # noqa: BLE001 - no memory is left, or a new torch: the training goes on
        warn_once("watch_compute", "the GPU is not tested between steps: %r", error)
    if group is not None:
        try:
            _sum_in(group, where, test)
        except Exception as error:  # noqa: BLE001 - as above
            warn_once("watch_compute", "no all-reduce is done between steps: %r", error)
    if test is not None:
        monitor.watch(test.settle)
    return test


def _times(where: torch.device, do: Callable[[], object], repeats: int) -> Times:
    if where.type != "cuda":
        return Times(do, repeats)
    return GpuTimes(do, repeats, functools.partial(torch.cuda.Event, enable_timing=True))


def _multiplications(where: torch.device) -> Callable[[], Times]:
    on_gpu = where.type == "cuda"
    size, kind = (SIZE_ON_GPU, torch.bfloat16) if on_gpu else (SIZE_ON_CPU, torch.float32)
    one, other, product = (torch.ones(size, size, device=where, dtype=kind) for _ in range(3))

    def multiply() -> Times:
        with torch.no_grad():
            return _times(where, lambda: torch.mm(one, other, out=product), REPEATS)

    multiply()  # the first one loads what it needs
    return multiply


def _sum_in(group: dist.ProcessGroup, where: torch.device, test: ComputeTest | None) -> None:
    """All ranks of the group agree here whether they do it, and after which steps."""
    every = 0.0 if test is None else float(test.every)
    able = torch.tensor([every, -every], device=where)
    dist.all_reduce(able, dist.ReduceOp.MIN, group)
    least, most = able.tolist()
    if test is None or not 0 < least == -most:
        return
    on_gpu = where.type == "cuda"
    count, kind = (NUMBERS_ON_GPU, torch.bfloat16) if on_gpu else (NUMBERS_ON_CPU, torch.float32)
    numbers = torch.zeros(count, device=where, dtype=kind)

    def sum_up() -> Times:
        dist.all_reduce(able, dist.ReduceOp.MIN, group)  # so that no rank's time has the waiting for others in it
        return _times(where, lambda: dist.all_reduce(numbers, group=group), SUMS)

    test.sum_up = sum_up
