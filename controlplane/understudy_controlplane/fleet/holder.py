"""Who leads: the row of the database that names the control plane which works on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    term: int
    """Each control plane that takes the lead has a higher one than those before it."""
    renewed_at: float | None
    """The database's clock; None: it gave the lead up. It is compared with itself only."""
    url: str
