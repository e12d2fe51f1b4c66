"""What operators ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    HOLD = "hold"  # a node leaves service and is left alone
    RELEASE = "release"  # it comes back
    RETIRE = "retire"  # it leaves for good
    TEST = "test"  # it is tested, as if it had been repaired: a new node, or one that a user suspects
    BURN_IN = "burn-in"  # the same test, again and again for some hours
    RESET_BREAKER = "reset-breaker"


OURSELVES = "understudy"
"""By whom a request is that no person has made, as for a node that is new."""


@dataclass(frozen=True, slots=True)
class Request:
    """About one node, not answered by a decision yet."""

    id: int
    node: str
    verb: Verb
    reason: str
    by: str
    at: float
