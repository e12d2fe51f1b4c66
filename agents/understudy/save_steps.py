"""Before which steps a rank saves a checkpoint: the same ones on every rank of the gang, without a collective.

Files have one schedule, saves in the memory of the nodes another one; an order says both. The control plane orders a
step in the future. Every rank is asked first whether it can still follow (`proposed`); only when all have answered is
the order `valid`. A rank that reaches the step before it knows what became of the order waits for that.
docs/adr/0039-when-a-gang-saves.md has the reasons.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from .never_raise import log

PROPOSED, VALID, WITHDRAWN, FOLLOWED, LATE = "proposed", "valid", "withdrawn", "followed", "late"

WAIT_SECONDS_MAX = 30.0
"""Time at a step whose order is proposed, for what becomes of it."""

NEVER = 2**63


class Order(NamedTuple):
    number: int  # counts the orders of an attempt
    step: int  # save before this one
    every: int  # and before each step that is a multiple of this further; 0: as the training's own code says
    memory_every: int = 0  # the same of saves in memory


class Schedule:
    """One of files, or of saves in memory."""

    def __init__(self) -> None:
        self.asked = -1
        self.next = -1  # due() has nothing to look at before this step
        self.planned = NEVER
        self.own_every = 0


class SaveSteps:
    """Safe from any thread. due() is called by the training's, take() by the link's."""

    def __init__(self) -> None:
        self.after_fork()
        self.wait_seconds = WAIT_SECONDS_MAX
        self.shows = False  # as Outbox.shows
        self._files, self._memory = Schedule(), Schedule()
        self._in_force = Order(0, 0, 0)
        self._pending: Order | None = None
        self._number = 0  # of the newest order
        self._state = ""  # of that order, on this rank

    def due(self, step: int, every: int = 0, in_memory: bool = False) -> bool:
        schedule = self._memory if in_memory else self._files
        with self._lock:
            before, schedule.asked = schedule.asked, step
            if step < before:
                self._count_again(schedule, step - 1)
                before = step - 1
            if step < schedule.next and every == schedule.own_every:
                return False
            return self._look(schedule, step, every, before)

    def take(self, message: dict[str, Any]) -> None:
        """An order, or what became of one."""
        every, memory_every = int(message.get("every", 0)), int(message.get("memory_every", 0))
        order = Order(int(message["number"]), int(message["step"]), every, memory_every)
        with self._lock:
            if order.number >= self._number:
                self._take(order, str(message.get("state")))
            self._news.notify_all()

    def report(self) -> dict[str, Any] | None:
        """What the control plane is to know; None: due() was never called for files."""
        with self._lock:
            if self._files.asked < 0:
                return None
            order, in_force = self._pending or self._in_force, self._in_force
            known = order if order.number == self._number else in_force._replace(number=self._number, step=0)
            report: dict[str, Any] = {"asked": self._asked, **known._asdict(), "in_force": in_force.number}
            if self._files.own_every:
                report["own_every"] = self._files.own_every
            if self._memory.asked >= 0:
                report.update(asks_memory=True, own_memory_every=self._memory.own_every)
            else:
                del report["memory_every"]
            return {**report, "state": self._state} if self._state else report

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)

    @property
    def _asked(self) -> int:
        """The furthest step that this rank has reached."""
        return max(self._files.asked, self._memory.asked)

    def _count_again(self, schedule: Schedule, step: int) -> None:
        """The numbers fall, on all ranks at the same step: an epoch, a second training, a resume. The intervals count
        from 0, and an order for a step of the count before is not followed any more.
        """
        self._in_force = self._in_force._replace(step=0)
        if self._pending is not None:
            self._pending, self._state = None, WITHDRAWN
        self._plan_after(schedule, step)

    def _look(self, schedule: Schedule, step: int, every: int, before: int) -> bool:
        is_first = before < 0
        if is_first:
            before = step - 1
        if every != schedule.own_every or is_first:
            schedule.own_every = every
            self._plan_after(schedule, before)
        if self._pending is not None and step >= self._pending.step:
            self._reach(self._pending)
            self._plan_after(schedule, before)
        due = step >= schedule.planned
        self._plan_after(schedule, step)
        return due

    def _reach(self, order: Order) -> None:
        if self._state == PROPOSED:
            self._news.wait_for(lambda: self._number != order.number or self._state != PROPOSED, self.wait_seconds)
        if self._pending is order:
            self._pending = None
        if self._number == order.number and self._state == VALID:
            self._follow(order)
        elif self._number == order.number and self._state == PROPOSED:
            self._state = LATE
            text = "understudy: no answer within %g s whether the order to save before step %d is valid: it is ignored"
            log.warning(text, self.wait_seconds, order.step)

    def _take(self, order: Order, state: str) -> None:
        is_new = order.number > self._number
        if state == PROPOSED and is_new:
            self._number = order.number
            self._pending, self._state = (order, PROPOSED) if order.step > self._asked else (None, LATE)
        elif state == VALID and is_new:  # this process has started since the others were asked
            self._number = order.number
            if order.step > self._asked:
                self._pending, self._state = order, VALID
            else:
                self._pending = None
                self._follow(order)
        elif state == VALID and self._state == PROPOSED:
            self._state = VALID
        elif state == VALID and self._state == LATE:
            log.error("understudy: the gang saves before step %d, and this rank does not", order.step)
        elif state == WITHDRAWN and (is_new or self._state == PROPOSED):
            self._number, self._pending, self._state = order.number, None, WITHDRAWN
        self._look_again()

    def _follow(self, order: Order) -> None:
        before, own = self._in_force.every, self._files.own_every
        if self.shows and order.every not in (before, own):
            text = "understudy: the control plane orders a checkpoint each %d steps from step %d on, before: %s"
            log.warning(text, order.every, order.step, before or own or "none")
        self._in_force, self._state = order, FOLLOWED
        for schedule in (self._files, self._memory):
            self._plan_after(schedule, schedule.asked)

    def _plan_after(self, schedule: Schedule, step: int) -> None:
        """Its first step after this one. What the training's own code names stays due, whatever is ordered."""
        order = self._in_force
        base, every = order.step, order.every if schedule is self._files else order.memory_every
        if order.number and base > step:
            planned = base
        else:
            planned = base + ((step - base) // every + 1) * every if every else NEVER
        own = schedule.own_every
        schedule.planned = min(planned, (step // own + 1) * own) if own else planned
        self._look_again()

    def _look_again(self) -> None:
        pending = self._pending.step if self._pending is not None else NEVER
        for schedule in (self._files, self._memory):
            schedule.next = min(schedule.planned, pending) if schedule.asked >= 0 else -1
