"""Chooses the checkpoints of a run that are not needed any more. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence, Set

from understudy_controlplane.decide.restore_point import Catalogue, judged
from understudy_controlplane.fleet.job import Attempt, Checkpoint, Condition, JobKey, Keep
from understudy_wire.facts import Tier

LAST_MIN = 2
"""Whatever a job says: the newest one may turn out to be bad."""

GOOD = (Condition.AS_WRITTEN, Condition.VERIFIED)

SETTLED_SECONDS = 900.0
"""Longer than clocks of file servers differ: what is written to its path again while it is deleted is seen to be
younger (`understudy_agent.files.delete`).
"""

TIERS = tuple(Tier)
"""Nearest first, after the one that is not known."""


def dispensable(
    known: Catalogue,
    of_attempt: tuple[JobKey, Attempt],
    announced: Iterable[Checkpoint],
    keep: Keep,
    now: float,
    steps_in_use: Set[int] = frozenset(),
) -> list[Checkpoint]:
    """Good ones that the next attempts do not need, the oldest first. `announced` is all that jobs of the run
    announced, complete or not: what shares a path with another one stays.

    Of each tier, and of each size of gang that can restore it, the last good ones stay, so that no gang restores
    another checkpoint than before. What is bad, suspect or not complete stays for a person to look at.
    """
    good = [one for one, against in judged(known, *of_attempt) if not against and one.condition in GOOD]
    furthest = max((TIERS.index(one.tier) for one in good), default=0)
    kept: set[Checkpoint] = set()
    for group in _groups(good):
        kept |= _last(group, max(keep.last, LAST_MIN))
        kept |= _last([one for one in group if one.condition is Condition.VERIFIED], 1)
        if keep.hours and TIERS.index(group[0].tier) == furthest:
            kept |= _first_of_spans(group, keep.hours * 3600.0)
    paths = _Paths(announced)
    found = (
        one
        for one in good
        if one not in kept
        and one.completed_at < now - SETTLED_SECONDS
        and one.step not in steps_in_use
        and not paths.has_other(one)
    )
    return sorted(found, key=lambda one: (one.completed_at, one.step))


def _groups(good: Iterable[Checkpoint]) -> list[list[Checkpoint]]:
    """Checkpoints grouped by tier and the size of gang that can restore them, furthest first."""
    groups: dict[tuple[Tier, int], list[Checkpoint]] = {}
    for one in good:
        groups.setdefault((one.tier, one.ranks), []).append(one)
    return list(groups.values())


def _last(furthest_first: Sequence[Checkpoint], count: int) -> set[Checkpoint]:
    """All of so many steps."""
    steps = sorted({one.step for one in furthest_first}, reverse=True)[:count]
    return {one for one in furthest_first if one.step in steps}


def _first_of_spans(group: Iterable[Checkpoint], seconds: float) -> set[Checkpoint]:
    """First checkpoint of each span, by the clock, so that what is the first stays the first."""
    first: dict[int, Checkpoint] = {}
    for one in sorted(group, key=lambda one: one.completed_at):
        first.setdefault(int(one.completed_at // seconds), one)
    return set(first.values())


class _Paths:
    """Places of checkpoints whose files may still be there."""

    def __init__(self, announced: Iterable[Checkpoint]) -> None:
        self._at: dict[str, set[_Write]] = {}
        self._within: dict[str, set[_Write]] = {}
        for one in announced:
            if one.condition is not Condition.DELETED:
                self._at.setdefault(one.path, set()).add(_write_of(one))
                for folder in _folders(one.path):
                    self._within.setdefault(folder, set()).add(_write_of(one))

    def has_other(self, one: Checkpoint) -> bool:
        """Another one's path is the same, or lies in it, or it lies in that."""
        there = self._at.get(one.path, set()) | self._within.get(one.path, set())
        for folder in _folders(one.path):
            there = there | self._at.get(folder, set())
        return bool(there - {_write_of(one)})


_Write = tuple[JobKey, Attempt, int]


def _write_of(one: Checkpoint) -> _Write:
    return one.job, one.attempt, one.step


def _folders(path: str) -> Iterator[str]:
    """Folders that the path lies in."""
    while (folder := posixpath.dirname(path)) != path:
        yield folder
        path = folder
