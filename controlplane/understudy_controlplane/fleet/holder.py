"""Who leads: the row of the database that names the control plane which works on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Holder:
    term: int
    """Each control plane that takes the lead has a higher one than those before it."""
    renewed_at: float | None
    """The database's clock; None: it gave the lead up. It is compared with itself only."""
    url: str


STANDBY_SECONDS = 5.0
"""A standby asks for the lead several times a second, and again after its database was away."""


class Standby(NamedTuple):
    """A control plane that stands by, as the database shows it."""

    silent_seconds: float
    """Time since it asked for the lead: one that is frozen keeps its session."""
    able: bool
    """It reads Slurm, knows the database's schema, and could work."""
    answers: int = 0
    """Another number each time that slurmctld has answered it again."""


@dataclass(frozen=True, slots=True)
class Leading:
    """What the control plane that leads knows of its lead, and of those that stand by."""

    url: str
    term: int
    since: float
    looked_at: float
    seen_at: Mapping[str, float]
    """Each other control plane that was seen since → when it last asked for the lead, or had it."""

    @property
    def standbys(self) -> list[str]:
        return sorted(name for name, at in self.seen_at.items() if self.looked_at - at < STANDBY_SECONDS)

    @property
    def gone_since(self) -> float | None:
        """None: one stands by, or none ever did."""
        return None if self.standbys else max(self.seen_at.values(), default=None)


@dataclass(frozen=True, slots=True)
class Leader:
    """A control plane that leads, as it names itself to agents."""

    installation: str = ""
    """It is made at random with the database, and the same in each copy. Empty: it names itself to no agent."""
    term: int = 0


@dataclass(frozen=True, slots=True)
class OtherLeader:
    """Another control plane that answers this cluster's agents as its leader."""

    words: str
    is_believed: bool
    """So many agents report it that it is not one of them that is wrong, or lies."""
