"""What became of the hours of a job: every second from its first start to its last known step has one cause. Pure.

A step that was kept is productive for the job's healthy step time, as in `ettr`. What it took longer is slow. A step
that was done again counts once. Between the last step of one attempt and the first of the next, the marks of its
recovery say what went on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from understudy_controlplane.figures.ettr import in_one_count
from understudy_controlplane.fleet.history import AttemptProgress, Loss, Mark


@dataclass(frozen=True, slots=True)
class Segment:
    """`share` of its time has this cause. None: it was productive. `after`: number of the attempt whose end has lost
    it; None: none has.
    """

    begin: float
    end: float
    share: float
    loss: Loss | None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Hours:
    wall_seconds: float
    productive_seconds: float
    lost_seconds: dict[Loss, float] = field(default_factory=dict)
    lost_to: dict[int, float] = field(default_factory=dict)  # by the number of the interruption; not in the queue

    @property
    def ettr(self) -> float | None:
        return min(1.0, self.productive_seconds / self.wall_seconds) if self.wall_seconds > 0 else None


def hours(
    attempts: Sequence[AttemptProgress],
    marks: Iterable[Mark],
    since: float,
    until: float,
    stands_until: float | None = None,
    interrupted_at: Sequence[float] = (),
) -> Hours | None:
    """Hours of the part that lies in the span. `attempts` in order, those that finished a step. `stands_until`: the
    gang was interrupted and has made no step until then. `interrupted_at`: in order. None: too little is known.
    """
    in_order = sorted(marks, key=lambda one: one.at)
    parts = [(min(one.end, until) - max(one.begin, since), one) for one in segments(attempts, in_order, stands_until)]
    inside = [(seconds * one.share, one) for seconds, one in parts if seconds > 0]
    if not inside:
        return None
    lost: dict[Loss, float] = {}
    lost_to: dict[int, float] = {}
    for seconds, one in inside:
        if one.loss is not None:
            lost[one.loss] = lost.get(one.loss, 0.0) + seconds
            number = None if one.loss is Loss.QUEUE else _interruption_of(one, attempts, interrupted_at)
            if number is not None:
                lost_to[number] = lost_to.get(number, 0.0) + seconds
    productive = sum(seconds for seconds, one in inside if one.loss is None)
    return Hours(productive + sum(lost.values()), productive, lost, lost_to)


def _interruption_of(
    segment: Segment, attempts: Sequence[AttemptProgress], interrupted_at: Sequence[float]
) -> int | None:
    """The last one before it, of those between the first steps of two attempts; what was lost before the first of them,
    such as steps that were done again, is lost to that one.
    """
    if segment.after is None:
        return None
    begin = attempts[segment.after].first_step_at
    end = attempts[segment.after + 1].first_step_at if segment.after + 1 < len(attempts) else inf
    between = [number for number, at in enumerate(interrupted_at) if begin <= at < end]
    before = [number for number in between if interrupted_at[number] <= segment.begin]
    return before[-1] if before else between[0] if between else None


def segments(
    attempts: Sequence[AttemptProgress], marks: Sequence[Mark], stands_until: float | None = None
) -> Iterator[Segment]:
    """Segments in order, without a gap. `marks` in order."""
    attempts = [*in_one_count(attempts)]
    known = [seconds for one in attempts if (seconds := one.step_seconds)]
    if not known:
        return
    healthy, at, before = min(known), attempts[0].running_at, -inf
    back_to = [*accumulate((one.first_step for one in reversed(attempts)), min, initial=inf)][::-1]
    for number, attempt in enumerate(attempts):
        begun = max(at, attempt.first_step_at - (attempt.step_seconds or healthy))
        yield from _without_steps(at, begun, marks, before, number - 1 if number else None)
        at, before = max(begun, attempt.last_step_at), begun
        done = attempt.last_step - attempt.first_step + 1
        again = min(done, max(0, attempt.last_step - back_to[number + 1] + 1))
        kept_until = begun + (at - begun) * (done - again) / done
        if kept_until > begun:
            well = min(1.0, healthy * (done - again) / (kept_until - begun))
            yield Segment(begun, kept_until, well, None)
            yield Segment(begun, kept_until, 1 - well, Loss.SLOW)
        if at > kept_until:
            yield Segment(kept_until, at, 1.0, Loss.RECOMPUTE, number)
    if stands_until is not None:
        yield from _without_steps(at, stands_until, marks, before, len(attempts) - 1)


def _without_steps(
    begin: float, end: float, marks: Sequence[Mark], before: float, after: int | None
) -> Iterator[Segment]:
    """`before`: when the steps before it began; marks from then on count. A move of a healthy gang is decided while it
    works. The step under way at a fault is done again.
    """
    counted = [mark for mark in marks if before < mark.at < end]
    is_fault_known = any(mark.loss is Loss.DETECT and mark.at >= begin for mark in counted)
    loss = Loss.START if before == -inf else Loss.RECOMPUTE if is_fault_known else Loss.DETECT
    at = begin
    for mark in counted:
        if mark.at > at:
            yield Segment(at, mark.at, 1.0, loss, after)
            at = mark.at
        loss = mark.loss
    if end > at:
        yield Segment(at, end, 1.0, loss, after)
