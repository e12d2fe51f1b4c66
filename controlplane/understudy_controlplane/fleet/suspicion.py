"""Why a node is suspected. A suspect stays in service; it leaves the state SUSPECT with its last suspicion."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SuspicionCause(StrEnum):
    SLOW = "slow"  # a rank there is slower than its peers
    HEALTH = "health"  # its hardware or its system looks wrong
    CORRUPTION = "corruption"  # NaN appeared there first
    HANG = "hang"  # a gang waited for it
    BLACK_HOLE = "black_hole"  # launchers of several users blame it


@dataclass(frozen=True, slots=True)
class Suspicion:
    cause: SuspicionCause
    since: float
