"""Step time of a job over its days, as far as it is kept: between its checkpoints, and up to the last step of each
attempt. Recoveries and checkpoints are marked. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup

from understudy_controlplane.clock import moment
from understudy_controlplane.dashboard.page import duration
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import Save
from understudy_controlplane.store.queries import Record

WIDTH, HEIGHT, LEFT, FOOT = 960, 170, 90, 34
STRETCHES_MAX, SAVED_MAX = 240, 480
"""They are of a whole drawing. Of more, every second, third … is drawn."""
TICKS = 6
TICKS_EVERY = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0, 28 * 86400.0)

Item = TypeVar("Item")
Mark = tuple[float, int]
"""Time, and the step that was reached then."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """`seconds`: mean time of a step from `begin` to `end`. `is_first`: nothing of its attempt stands before it."""

    begin: float
    end: float
    seconds: float
    is_first: bool


@dataclass(frozen=True, slots=True)
class Pace:
    begin: float
    """Start of the first attempt that made steps."""
    stretches: Sequence[Stretch]
    saved: Sequence[float]
    """Checkpoints that are drawn."""
    saves: int
    """All checkpoints."""
    recovered: Sequence[tuple[float, int, str]]
    """Time, number and words of each recovery."""

    @property
    def end(self) -> float:
        return max(one.end for one in self.stretches)

    @property
    def words(self) -> str:
        least = min(one.seconds for one in self.stretches)
        most = max(one.seconds for one in self.stretches)
        days = (self.end - self.begin) * 1000
        marks = f"{counted(len(self.recovered), 'recovery', 'recoveries')}, {counted(self.saves, 'checkpoint')}"
        return f"Step time over {duration(days)}: {duration(least * 1000)} to {duration(most * 1000)}; {marks}"


def pace(attempts: Sequence[Record], saves: Sequence[Save], recoveries: Sequence[Record]) -> Pace | None:
    """`recoveries` are of this job. None: no two marks are kept."""
    marks: dict[tuple[int, int], list[Mark]] = defaultdict(list)
    for one in saves:
        marks[one.attempt.restart_count, one.attempt.launch].append((one.at, one.step))
    reached = [[*_marks(attempt, marks[attempt["restart_count"], attempt["launch"]])] for attempt in attempts]
    every = _every(sum(map(len, reached)), STRETCHES_MAX)
    stretches = [stretch for of_attempt in reached for stretch in _stretches(_thinned(of_attempt, every))]
    if not stretches:
        return None
    stretches.sort(key=lambda one: one.begin)
    stretches = _thinned(stretches, _every(len(stretches), 2 * STRETCHES_MAX))  # each attempt has one
    begun = (one["running_at"] for one in attempts if one["running_at"] is not None and one["last_step"] is not None)
    begin, end = min([stretches[0].begin, *begun]), max(one.end for one in stretches)
    recovered = [
        (at, one["id"], one["reason"] or one["kind"].replace("_", " "))
        for one in recoveries
        if begin <= (at := one["fault_at"] or one["decided_at"]) <= end
    ]
    saved = [one.at for one in saves if begin <= one.at <= end]
    return Pace(begin, stretches, _thinned(saved, _every(len(saved), SAVED_MAX)), len(saved), recovered)


def _marks(attempt: Record, saved: Iterable[Mark]) -> Iterator[Mark]:
    """The start only where no checkpoint follows: it holds the time of loading."""
    found = sorted(saved)
    if attempt["last_step"] is not None and attempt["last_step_at"] is not None:
        found.append((attempt["last_step_at"], attempt["last_step"] + 1 - attempt["count_from"]))
    if len(found) == 1 and attempt["running_at"] is not None:
        found.insert(0, (attempt["running_at"], attempt["restore_step"] or 0))
    reached: Mark | None = None
    for mark in found:
        if reached is None or (mark[0] > reached[0] and mark[1] > reached[1]):
            yield mark
            reached = mark


def _every(count: int, at_most: int) -> int:
    return max(-(-count // at_most), 1)


def _thinned(items: list[Item], every: int) -> list[Item]:
    """The last one stays."""
    return items if every == 1 else [*items[:-1:every], *items[-1:]]


def _stretches(marks: Sequence[Mark]) -> Iterator[Stretch]:
    for number, ((begin, before), (end, after)) in enumerate(pairwise(marks)):
        yield Stretch(begin, end, (end - begin) / (after - before), number == 0)


def drawn(shown: Pace) -> Markup:
    begin, end = shown.begin, shown.end
    most = max(one.seconds for one in shown.stretches) * 1.1
    bottom = HEIGHT - FOOT

    def x(at: float) -> str:
        return f"{LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - 10):.1f}"

    def y(seconds: float) -> str:
        return f"{bottom - seconds / most * (bottom - 10):.1f}"

    line = " ".join(
        f"{'M' if one.is_first else 'L'}{x(one.begin)} {y(one.seconds)}H{x(one.end)}" for one in shown.stretches
    )
    return Markup(
        '<svg class="timeline" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{ticks}{saved}{recovered}'
        '<path class="pace" d="{line}"/></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        label=shown.words,
        ticks=Markup("").join(
            [
                *(_level(seconds, y(seconds)) for seconds in (0.0, most / 2.2, most / 1.1)),
                *(_tick(words, x(at)) for at, words in _times(begin, end)),
            ]
        ),
        saved=Markup('<path class="saved" d="{d}"/>').format(d="".join(f"M{x(at)} {bottom}v6" for at in shown.saved)),
        recovered=Markup("").join(
            Markup('<path class="moved" d="M{x} 4V{y}"><title>recovery {id}: {why}</title></path>').format(
                x=x(at), y=bottom, id=number, why=why
            )
            for at, number, why in shown.recovered
        ),
        line=line,
    )


def _level(seconds: float, y: str) -> Markup:
    return Markup('<path class="tick" d="M{l} {y}H{w}"/><text class="name" x="{t}" y="{y}">{words}</text>').format(
        l=LEFT, y=y, w=WIDTH - 10, t=LEFT - 8, words=duration(seconds * 1000)
    )


def _tick(words: str, x: str) -> Markup:
    return Markup('<text class="axis" x="{x}" y="{y}">{words}</text>').format(x=x, y=HEIGHT - 8, words=words)


def _times(begin: float, end: float) -> Iterator[tuple[float, str]]:
    """Round times of UTC."""
    every = next((one for one in TICKS_EVERY if (end - begin) / one <= TICKS), TICKS_EVERY[-1])
    at = begin - begin % every + every
    while at < end:
        yield at, f"{moment(at):%H:%M}" if every < TICKS_EVERY[4] else f"{moment(at):%m-%d %H:%M}"
        at += every
