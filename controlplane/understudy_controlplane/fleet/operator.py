"""What operators ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    HOLD = "hold"  # a node leaves service and is left alone
    RELEASE = "release"  # the node returns
    RETIRE = "retire"  # the node leaves service for good
    TEST = "test"  # the node is validated, as after a repair: a new node, or one that a user suspects
    BURN_IN = "burn-in"  # the same validation, repeated for some hours
    RESET_BREAKER = "reset-breaker"


BY_CONTROL_PLANE = "understudy"
"""Who made a request that no person made, such as the one for a new node."""


@dataclass(frozen=True, slots=True)
class Request:
    """About one node, not answered by a decision yet."""

    id: int
    node: str
    verb: Verb
    reason: str
    by: str
    at: float
