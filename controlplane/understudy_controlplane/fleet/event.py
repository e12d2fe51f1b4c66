"""What happened, as a stream of events, and how far a reader has come in it.

Events are rows that exist anyway: a decision, a request, the begin and the end of an incident or recovery, a step that
has ended. Each kind has an order of its own, so a place in the stream is a position for each kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec


class EventKind(StrEnum):
    DECISION = "decision"
    REQUEST = "request"  # of an operator: about a node, a pause, the mode, the circuit breaker
    INCIDENT_OPENED = "incident_opened"
    INCIDENT_CLOSED = "incident_closed"
    RECOVERY_BEGUN = "recovery_begun"  # or proposed, in mode approve
    RECOVERY_STEP = "recovery_step"  # done, or failed
    RECOVERY_ENDED = "recovery_ended"


class Position(NamedTuple):
    """Place of an event among those of its kind. `at` is 0 if the number of the record is enough."""

    at: float
    number: int


NONE_YET = Position(0.0, 0)
_PART = re.compile(r"(?:(\d{1,12}(?:\.\d{1,9})?)~)?(\d{1,18})")


class Event(msgspec.Struct, frozen=True):
    """`number` is that of the record: of the recovery for its steps. `text` is for people."""

    kind: EventKind
    at: float
    number: int
    subject: str
    nodes: tuple[str, ...]
    job: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Happened:
    event: Event
    position: Position


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the stream."""

    positions: tuple[Position, ...]
    """Positions in the order of `EventKind`."""

    @staticmethod
    def of(positions: Mapping[EventKind, Position]) -> Cursor:
        return Cursor(tuple(positions.get(kind, NONE_YET) for kind in EventKind))

    @staticmethod
    def parse(text: str) -> Cursor:
        """Raises ValueError."""
        found = [_PART.fullmatch(part) for part in text.split("_")]
        if len(found) != len(EventKind) or None in found:
            raise ValueError("it is no id of an event")
        return Cursor(tuple(Position(float(one[1] or 0), int(one[2])) for one in found if one))

    def __str__(self) -> str:
        return "_".join(f"{one.at!r}~{one.number}" if one.at else str(one.number) for one in self.positions)

    def of_kind(self, kind: EventKind) -> Position:
        return self.positions[_PLACES[kind]]

    def has_passed(self, one: Happened) -> bool:
        return one.position <= self.of_kind(one.event.kind)

    def after(self, one: Happened) -> Cursor:
        """The place behind this event."""
        place = _PLACES[one.event.kind]
        return Cursor((*self.positions[:place], one.position, *self.positions[place + 1 :]))

    def reaches(self, other: Cursor) -> bool:
        """True if it is at this place, or behind it, for each kind."""
        return all(map(Position.__ge__, self.positions, other.positions))

    def at_least(self, other: Cursor) -> Cursor:
        """The later place of the two for each kind."""
        return Cursor(tuple(map(max, self.positions, other.positions)))

    def at_most(self, other: Cursor) -> Cursor:
        """The earlier place of the two for each kind."""
        return Cursor(tuple(map(min, self.positions, other.positions)))


_PLACES = {kind: place for place, kind in enumerate(EventKind)}
