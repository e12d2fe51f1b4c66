"""ETTR, the effective training time ratio: productive time over wall time.

Productive is a step that was kept. Each counts with the healthy step time of the job, the smallest mean step time
of its attempts, so that straggling counts as loss. Wall time runs from the first start to the last known step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from understudy_controlplane.fleet.history import AttemptProgress


@dataclass(frozen=True, slots=True)
class Ettr:
    ratio: float  # 0..1
    steps_kept: int
    steps_lost: int  # done more than once
    step_seconds: float
    wall_seconds: float


def in_one_count(attempts: Sequence[AttemptProgress]) -> Iterator[AttemptProgress]:
    """Attempts with the first step of each in the count of the attempt before it, which it continues, or repeats."""
    count_from = 0
    for one in attempts:
        yield replace(one, first_step=count_from + one.first_step)
        count_from = one.count_from


def ettr(of_program: Sequence[AttemptProgress]) -> Ettr | None:
    """The attempts in order. None while too little is known."""
    attempts = [*in_one_count(of_program)]
    durations = [seconds for attempt in attempts if (seconds := attempt.step_seconds) is not None]
    if not durations:
        return None
    step_seconds = min(durations)
    lost = sum(max(0, before.last_step - after.first_step + 1) for before, after in pairwise(attempts))
    kept = attempts[-1].last_step - attempts[0].first_step + 1
    wall_seconds = attempts[-1].last_step_at - attempts[0].running_at
    if wall_seconds <= 0:
        return None
    ratio = min(1.0, kept * step_seconds / wall_seconds)
    return Ettr(ratio, kept, lost, step_seconds, wall_seconds)
