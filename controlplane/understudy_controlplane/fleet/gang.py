"""Gangs that a launcher drives within their allocation, and what their launchers are told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_controlplane.fleet.job import Attempt, JobKey

LEAVING = frozenset({"waiting", "leaving"})
"""Phases of a launcher that starts nothing any more."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The launcher's own word. A user's process: believed about its own job, and nothing else."""

    attempt: Attempt
    host: str  # where the launcher runs
    seats: tuple[str, ...]  # by node rank
    spares: tuple[str, ...]
    lost: tuple[str, ...] = ()  # nodes of the allocation that it does not use any more
    nodes_min: int = 1  # it goes on with no fewer
    phase: str = "running"
    heard_at: float | None = None  # by our clock; None: not by this process, read from the database

    @property
    def leaving(self) -> bool:
        return self.phase in LEAVING

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*self.seats, *self.spares, *self.lost)


@dataclass(frozen=True, slots=True)
class Anew:
    """The gang is to be started anew, though no rank of it has ended."""

    launch: int  # this launch, or an earlier one, is to end
    reason: str
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Word:
    """What a launcher is told: all that stands."""

    bad: Mapping[str, str] = field(default_factory=dict)
    anew: Anew | None = None

    @property
    def version(self) -> str:
        """Never empty. The same for the same word."""
        return hashlib.sha256(repr((sorted(self.bad.items()), self.anew)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BlackHole:
    """A launcher blamed a node because its ranks failed first there, again and again."""

    job: JobKey
    user_id: int
    at: float  # the last time


@dataclass(frozen=True, slots=True)
class Spent:
    """What earlier allocations of a job have used up."""

    launches_without_progress: int = 0
    best_step: int | None = None
