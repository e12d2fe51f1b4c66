"""Waiting in PyTorch's collectives: those of DistributedDataParallel, and those that a program calls itself.

`watch_ddp` measures from the end of this rank's own backward pass until the gradients of all ranks are reduced. It uses
no communication hook, so the reduction is the same as without it. On the CPU (gloo) this is the time for which the
backward pass blocks. On a GPU (NCCL) nothing blocks: two CUDA events on the stream measure it. They are read when they
are done, and nothing is synchronised for them. A reduction that overlaps the backward pass is no waiting.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from .monitor import Monitor
from .never_raise import never_raise, warn_once

GRADIENTS = "ddp_gradients"
"""The name under which DDP's reduction of one backward pass is reported."""

PENDING_MAX = 64

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)


TRANSFERS = ("send", "recv")


class Watch:
    """The hooks that watch_ddp() registered; remove() removes them."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def keep(self, handle: Any) -> None:
        self._handles.append(handle)


def watch_ddp(monitor: Monitor, model: nn.Module) -> Watch:
    """The time for which each backward pass through `model` waits for other ranks counts as waiting.

    `model` is a DistributedDataParallel, or the module in one. A backward pass that gives neither the first nor the
    last of its parameters a gradient is not measured; neither is FSDP, nor a pass that is captured in a CUDA graph.
    """
    watch = Watch()
    try:
        parameters = [one for one in model.parameters() if one.requires_grad] if monitor.active else []
        if not parameters:
            return watch
        wait = _gpu_wait(monitor) if parameters[0].is_cuda else _CpuWait(monitor)
        watch.keep(wait)
        mark = _EndOfBackward(wait, model).mark
        for parameter in {id(one): one for one in (parameters[0], parameters[-1])}.values():
            watch.keep(parameter.register_hook(mark))  # type: ignore[no-untyped-call]  # torch ships it untyped
    except Exception as error:  # noqa: BLE001 - a new torch must not end the training
        warn_once("watch_ddp", "time spent waiting in DDP is not measured: %r", error)
    return watch


@contextlib.contextmanager
def watch_collectives(monitor: Monitor) -> Iterator[None]:
    """Every call of `torch.distributed.all_reduce` and the other collectives is timed and recorded within this block.

    Functions that were imported by name before (`from torch.distributed import barrier`) are not. For a call that does
    not block, with `async_op=True` or on NCCL, the time is only that of starting it. `send` and `recv` are timed for
    their peer.
    """
    originals = {name: getattr(dist, name) for name in COLLECTIVES if monitor.active and hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, monitor.collective(name)(original))
    for name in TRANSFERS if monitor.active else ():
        originals[name] = getattr(dist, name)
        setattr(dist, name, _timed_transfer(monitor, originals[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _timed_transfer(monitor: Monitor, original: Callable[..., Any]) -> Callable[..., Any]:
    """`send` and `recv` take a tensor and the peer's global rank. Without that it is time spent waiting."""

    @functools.wraps(original)
    def timed(*given: Any, **named: Any) -> Any:
        peer = given[1] if len(given) > 1 else named.get("dst", named.get("src"))
        with monitor.waiting() if peer is None else monitor.transfer(peer):
            return original(*given, **named)

    return timed


class _CpuWait:
    """The reduction blocks this thread."""

    def __init__(self, monitor: Monitor) -> None:
        self._collective = monitor.collective(GRADIENTS)
        self._inside = False

    def begin(self) -> None:
        self.end()  # the last backward pass failed
        self._inside = True
        self._collective.__enter__()

    def remove(self) -> None:
        self.end()

    def end(self) -> None:
        if self._inside:
            self._inside = False
            self._collective.__exit__(None, None, None)


class _GpuWait:
    """The reduction is work on the GPU's streams. An event before and one after it, read when they are done."""

    def __init__(self, monitor: Monitor, event: Callable[[], Any], capturing: Callable[[], bool]) -> None:
        self._monitor = monitor
        self._make_event = event
        self._capturing = capturing
        self._begun: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()
        self._spare: list[Any] = []
        monitor.watch(self.settle)

    def begin(self) -> None:
        if self._begun is not None:  # the last backward pass failed
            self._monitor.note_left()
            self._begun = None
        if self._capturing():
            return
        if len(self._pending) >= PENDING_MAX:
            self._pending.popleft()
            self._monitor.note_left()
        self._begun = self._event()
        self._begun.record()
        self._monitor.note_entered(GRADIENTS)

    def end(self) -> None:
        if self._begun is not None:
            done = self._event()
            done.record()
            self._pending.append((self._begun, done))
            self._begun = None

    @never_raise
    def settle(self) -> None:
        """Called at the end of a step. What the GPU has not finished counts in a later step: the host runs ahead."""
        while self._pending and self._pending[0][1].query():
            begun, done = self._pending.popleft()
            self._monitor.note_left()
            self._monitor.waited(begun.elapsed_time(done) / 1000)
            self._spare += (begun, done)

    def remove(self) -> None:
        self._monitor.unwatch(self.settle)

    def _event(self) -> Any:
        return self._spare.pop() if self._spare else self._make_event()


def _gpu_wait(monitor: Monitor) -> _GpuWait:
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    return _GpuWait(monitor, event, torch.cuda.is_current_stream_capturing)


class _EndOfBackward:
    """Calls `begin` when the gradients are computed and `end` when DDP has reduced them.

    Both are final callbacks of the backward pass, which run in the order in which they were queued. DDP queues its own
    after the last gradient's hook, so one queued in any gradient's hook comes before it; and one that is queued while
    that runs comes after.
    """

    def __init__(self, wait: _CpuWait | _GpuWait, model: nn.Module) -> None:
        self._wait = wait
        self._model = model
        self._pass = -1

    @never_raise
    def mark(self, _gradient: torch.Tensor) -> None:
        current: int = torch._C._current_graph_task_id()
        if current != self._pass:
            self._pass = current
            if getattr(self._model, "require_backward_grad_sync", True):  # not so within DDP's no_sync()
                _queue(self._begin)

    @never_raise
    def _begin(self) -> None:
        _queue(self._end)
        self._wait.begin()

    @never_raise
    def _end(self) -> None:
        self._wait.end()


def _queue(callback: Any) -> None:
    Variable._execution_engine.queue_callback(callback)  # as FSDP does
