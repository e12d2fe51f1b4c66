"""Can a launch go? Pure: from a picture of its seats, and how old its order is, to what to do.

Belongs here: how long nodes have to answer, and telling a node that does not from an srun that fails. Must not: clocks
(ages are given), or what follows from a bad node (`decide.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

START_ATTEMPTS_MAX = 3
RESTART_ATTEMPTS_MAX = 30
START_AGAIN_SECONDS = 2.0
PATIENCE_SECONDS_MIN = 3.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A launch that was ordered, as it is known now."""

    seats: tuple[str, ...]
    age_seconds: float
    bad: Mapping[str, str] = field(default_factory=dict)
    """Of its nodes, those where nothing can be started."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By node: what a seat that is there can see."""
    absent: tuple[str, ...] = ()
    """Nodes of the step that have not answered, spares among them."""
    answered: bool = False
    """Any node has."""
    srun_status: int | None = None
    """None: it runs."""


class Next(StrEnum):
    WAIT = "wait"
    GO = "go"
    AGAIN = "again"
    """In a new step, on the same nodes."""
    STEP_FAILED = "step failed"
    """Nobody answered and srun has ended: its options are refused, or slurmctld cannot be reached just now."""
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Outcome:
    next: Next
    bad: Mapping[str, str] = field(default_factory=dict)
    """To be replaced."""
    barred: tuple[str, ...] = ()
    """Slurm could not start a seat there."""


def judge(picture: Picture, patience_seconds: float, one_rank_a_gpu: bool) -> Outcome:
    bad, age, ended = picture.bad, picture.age_seconds, picture.srun_status is not None
    if ended and not picture.answered:
        if bad:
            return Outcome(Next.REPLACE, bad)
        return Outcome(Next.WAIT if age < START_AGAIN_SECONDS else Next.STEP_FAILED)
    if picture.absent and (age > patience_seconds or ended):
        missing = [node for node in picture.seats if node not in picture.gpus and node not in bad]
        bad = {**bad, **dict.fromkeys(missing, f"no seat there after {age:.1f} s")}
        return Outcome(Next.REPLACE if bad else Next.AGAIN, bad, picture.absent)
    if not bad and not picture.absent:
        if not picture.gpus.keys() >= set(picture.seats):  # condemned when the step was started, and not any more
            return Outcome(Next.AGAIN)
        bad = differing_gpus(picture) if one_rank_a_gpu else {}
        return Outcome(Next.REPLACE if bad else Next.GO, bad)
    return Outcome(Next.REPLACE if bad else Next.WAIT, bad)


def patience(seat_seconds: float, usual_seconds: float | None) -> float:
    """For seats to answer. At first Slurm may run a Prolog on each node; later it is known how long it takes."""
    if usual_seconds is None:
        return seat_seconds
    return min(seat_seconds, max(PATIENCE_SECONDS_MIN, 3 * usual_seconds))


def attempts_max(launch: int) -> int:
    """So many steps running may fail before any node answers. A gang that once ran is worth more of them."""
    return START_ATTEMPTS_MAX if launch == 0 else RESTART_ATTEMPTS_MAX


def differing_gpus(picture: Picture) -> dict[str, str]:
    """One rank for each GPU needs as many on every node: who has another number than most has lost some."""
    usual = Counter(picture.gpus.values()).most_common(1)[0][0]
    return {
        node: f"it shows {count} GPUs, most others {usual}; see --procs-per-node"
        for node, count in picture.gpus.items()
        if count != usual
    }
