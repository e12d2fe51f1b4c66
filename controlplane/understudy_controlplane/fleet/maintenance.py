"""Maintenance: nodes that an operator takes out of service for planned work, and that return after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from understudy_controlplane.fleet.job import JobKey


class Stage(StrEnum):
    """How far a node is. A node without one waits for its turn."""

    ASKED = "asked"  # the control plane has asked for its hold
    HELD = "held"  # out of service for this maintenance, until its validation has ended
    DONE = "done"  # back, or no longer held for this


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Not closed yet."""

    id: int
    targets: tuple[str, ...]  # as the operator named them
    nodes: tuple[str, ...]
    reason: str
    by: str
    at: float
    until: float  # when the nodes return
    at_once: int  # nodes that are out of service at the same time
    paused: bool = False
    ended_at: float | None = None  # by an operator, before its time
    stages: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The reason of its requests."""
        return f"maintenance {self.id}: {self.reason}"

    def is_ending(self, now: float) -> bool:
        return self.ended_at is not None or now >= self.until

    @property
    def unfinished(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if self.stages.get(name) is not Stage.DONE)


def maintenance_subject(number: int) -> str:
    """What requests about a maintenance are about. No node has such a name."""
    return f"maintenance {number}"


@dataclass(frozen=True, slots=True)
class Next:
    stages: Mapping[str, Stage]
    holds: tuple[str, ...] = ()
    move: tuple[JobKey, tuple[str, ...]] | None = None  # a gang, and the nodes that it leaves
    releases: tuple[str, ...] = ()
    is_over: bool = False
