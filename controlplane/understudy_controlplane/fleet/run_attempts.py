"""What each attempt of a run ran with, and where that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from understudy_controlplane.fleet.job import Attempt, JobKey

INPUTS = ("code", "config", "data")
"""Inputs of a training that can change from one attempt to the next."""


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """Attempt of a run. Empty texts are not known."""

    job: JobKey
    attempt: Attempt
    code: str
    config: str
    data: str


def changes(newest_first: Sequence[RunAttempt]) -> list[tuple[RunAttempt, tuple[str, ...]]]:
    """Each with what is other than in the attempt before it. What is not known of one of the two has not changed."""
    if not newest_first:
        return []
    return [*((later, _changed(earlier, later)) for later, earlier in pairwise(newest_first)), (newest_first[-1], ())]


def _changed(earlier: RunAttempt, later: RunAttempt) -> tuple[str, ...]:
    known = ((name, getattr(earlier, name), getattr(later, name)) for name in INPUTS)
    return tuple(name for name, before, now in known if before and now and not _is_same(name, before, now))


def _is_same(name: str, before: str, now: str) -> bool:
    """True if they are the same. What the files of the code were may be unknown once, and they may be in another
    commit, as they were.
    """
    if name != "code" or before == now:
        return before == now
    first, second = _named(before), _named(now)
    shared = first.keys() & second.keys()
    by = "files" if "files" in shared else "commit"
    return by in shared and first[by] == second[by]


def _named(code: str) -> dict[str, str]:
    words = code.split()
    return dict(zip(words[::2], words[1::2], strict=False))
