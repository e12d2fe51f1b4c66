"""Is the launch over? Pure: from a picture of it, and how old that is, to a word.

Belongs here: telling a rank's failure, a lost node and a verdict apart, and how long to wait for more to be heard. Must
not: clocks (ages are given), or what follows (`decide.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_agent.launch.case import Failure

SETTLE_SECONDS = 0.25
"""A node that dies takes ranks on other nodes with it, which may be heard of first. So much is waited for the cause."""
SETTLE_EARLY_SECONDS = 2.0
"""At the start of a launch, for the others: do all fail alike?"""
EARLY_SECONDS = 30.0
MANY_SILENT_SECONDS = 60.0
"""Most of the gang silent at once is the network or this host, not the nodes: only after so long it is believed."""
MANY_SLOW_SECONDS = 60.0
"""Most of the gang slow to die is a file system that stalls, or large ranks: not the nodes. So long it is waited."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A launch as it is known now."""

    seats: tuple[str, ...]
    ranks: int
    ended_well: int
    failures: tuple[Failure, ...]
    age_seconds: float
    first_failure_age_seconds: float = 0.0
    """Since the first failure was heard of."""
    silent_seconds: Mapping[str, float] = field(default_factory=dict)
    """By node: how long nothing was heard of its seat."""
    condemned: Mapping[str, str] = field(default_factory=dict)
    """By node: verdicts, seats that hung up, nodes that are down for Slurm."""
    progressed: bool = False
    stalled_seconds: float = 0.0
    """Since its newest step was seen; 0 before the first of this launch."""


@dataclass(frozen=True, slots=True)
class Over:
    """The launch is over, for these nodes' sake, or for its ranks' (no node named)."""

    bad: Mapping[str, str]
    told: str = ""
    """Why the control plane wants it ended; no rank of it has."""
    without: tuple[str, ...] = ()
    hung_seconds: float = 0.0
    """Not 0: no rank has failed, but for so long there was no new step."""

    @property
    def of_a_hang(self) -> bool:
        """Then no rank of it leaves it by itself."""
        return bool(self.told or self.hung_seconds)


def judge(picture: Picture, silence_seconds: float, hang_seconds: float = 0.0) -> Over | None:
    """None: let it go on, or wait for more to be heard. `hang_seconds` 0: it may stand still for ever."""
    bad = {node: why for node, why in picture.condemned.items() if node in picture.seats}
    bad |= lost_to_silence(picture.silent_seconds, len(picture.seats), silence_seconds)
    if bad:
        return Over(bad)
    running = picture.ranks - picture.ended_well - len(picture.failures)
    if not picture.failures:
        return Over({}) if running <= 0 else _hung(picture, silence_seconds, hang_seconds)
    if running <= 0 and not _may_be_a_nodes(picture):
        return Over({})
    early = picture.age_seconds <= EARLY_SECONDS and not picture.progressed and running > 0
    patience = SETTLE_EARLY_SECONDS if early else SETTLE_SECONDS
    return Over({}) if picture.first_failure_age_seconds >= patience else None


def _hung(picture: Picture, silence_seconds: float, hang_seconds: float) -> Over | None:
    """While nodes are silent, so are their steps: then it is not the ranks that stand still."""
    silent = any(age > silence_seconds for age in picture.silent_seconds.values())
    hung = hang_seconds > 0 and picture.stalled_seconds > hang_seconds and not silent
    return Over({}, hung_seconds=picture.stalled_seconds) if hung else None


def _may_be_a_nodes(picture: Picture) -> bool:
    """All ranks are gone: alike, then it is the program's, and nothing more is to be heard. Else a node may follow."""
    return len({failure.status for failure in picture.failures}) > 1 or picture.ended_well > 0


def lost_to_silence(silent_seconds: Mapping[str, float], seats: int, silence_seconds: float) -> dict[str, str]:
    """Of so many seats, those that nothing was heard of for too long."""
    silent = {node: age for node, age in silent_seconds.items() if age > silence_seconds}
    if are_many(len(silent), seats):
        silent = {node: age for node, age in silent.items() if age > MANY_SILENT_SECONDS}
    return {node: f"nothing heard of it for {age:.1f} s" for node, age in silent.items()}


def are_many(nodes: int, seats: int) -> bool:
    """Too many at once for it to be each one's own fault."""
    return nodes > max(1, seats // 2)
