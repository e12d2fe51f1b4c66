"""A gateway for one of several control planes: it changes nothing in Slurm unless this one leads.

Slurm knows no token by which it could refuse the call of a control plane that has lost the lead. So the lead is checked
before each call that changes something, and the call ends within a time for which the next leader waits. The process
that makes the call ends itself then: this one may be frozen meanwhile.

What is left is one call of each recovery, since each makes its calls in a thread of its own:
- A machine that stops between this check and the moment when the call is sent, or during the call, and goes on later.
- A slow slurmctld, which carries out a request that it has accepted, also where the process that sent it is long dead.

Steps look before they act:
- requeue: `requeue incomplete` does nothing to a job that pends; one that runs again already loses one more start.
- DOWN: the node is out of service then, and the next leader's repair resumes it.
- resume: the next round sees a node in service that is quarantined, and drains it again.
- reboot: `reboot ASAP` drains first and waits for the node's jobs.
- scancel: it names a job of the control plane's own by its id, which Slurm uses again after months at the earliest.
- reservations, begin times, limits, texts: the next round sees them, and sets them as they have to be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, cast

from understudy_controlplane.slurm.protocol import READS, NotSent, Slurm, SlurmUnavailable

_deadline: ContextVar[float | None] = ContextVar("_deadline", default=None)
_sent: ContextVar[bool] = ContextVar("_sent", default=False)
"""A call of this step was sent. A step may be a loop of calls."""


class Calls:
    """Calls that change something and are under way. Safe from any thread."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def end_within(self, seconds: float) -> bool:
        """True if none is under way. Ask once nothing may be changed any more: those that begin then send nothing."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, seconds)


def fenced(slurm: Slurm, objection: Callable[[], str], call_seconds: float, calls: Calls | None = None) -> Slurm:
    """`objection`: why nothing may be changed now; empty: it may."""
    return cast(Slurm, _Fenced(slurm, objection, call_seconds, calls or Calls()))


class _Fenced:
    def __init__(self, slurm: Slurm, objection: Callable[[], str], call_seconds: float, calls: Calls) -> None:
        self._slurm = slurm
        self._calls = calls
        self._objection = objection
        self._call_seconds = call_seconds
        self._prepare: Callable[[], None] = getattr(slurm, "prepare", lambda: None)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._slurm, name)
        if name in READS or not callable(call):
            return call

        def change(*arguments: Any, **named: Any) -> None:
            self._prepare()
            with self._calls, within(self._call_seconds):  # before the check: the time for it counts, too
                why = self._objection()
                if why:
                    raise (SlurmUnavailable if _sent.get() else NotSent)(f"{name} was not sent to Slurm: {why}")
                _sent.set(True)
                call(*arguments, **named)

        return change


def as_one_step(act: Callable[[], None]) -> None:
    """Raises NotSent where the lead was lost before the first of its calls."""
    Context().run(act)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A call of a gateway ends within this time."""
    outer = _deadline.set(_now() + seconds)
    try:
        yield
    finally:
        _deadline.reset(outer)


def _now() -> float:
    """Also counts the time for which this machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ends_at() -> float | None:
    """When (CLOCK_BOOTTIME) the process that makes the call has to end itself; None: it need not."""
    return _deadline.get()


def seconds_left(usual: float) -> float:
    """Time that a command or request of a gateway may take. Raises SlurmUnavailable where none is left."""
    deadline = _deadline.get()
    left = usual if deadline is None else min(usual, deadline - _now())
    if left <= 0:
        raise SlurmUnavailable("the call took too long, and what was left of it was not sent to Slurm")
    return left
