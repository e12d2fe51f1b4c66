"""Can a launch begin? Pure: judged from a sample of its seats."""

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
class SeatingSample:
    """What is known now of a launch that was ordered."""

    seats: tuple[str, ...]
    age_seconds: float
    bad: Mapping[str, str] = field(default_factory=dict)
    """Node of the launch → why nothing can be started there."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Node → GPUs that its seat sees."""
    absent: tuple[str, ...] = ()
    """Nodes of the step that have not answered, spares among them."""
    answered: bool = False
    srun_status: int | None = None
    """None: srun runs."""


class Next(StrEnum):
    WAIT = "wait"
    GO = "go"
    AGAIN = "again"
    """The launch is repeated in a new step, on the same nodes."""
    STEP_FAILED = "step failed"
    """No node answered and srun has ended: its options are refused, or slurmctld cannot be reached just now."""
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class SeatingState:
    next: Next
    bad: Mapping[str, str] = field(default_factory=dict)
    """Node → why a spare must replace it."""
    barred: tuple[str, ...] = ()
    """Slurm could not start a seat there."""


def judge_seating(sample: SeatingSample, patience_seconds: float, one_rank_a_gpu: bool) -> SeatingState:
    bad, age, ended = sample.bad, sample.age_seconds, sample.srun_status is not None
    if ended and not sample.answered:
        if bad:
            return SeatingState(Next.REPLACE, bad)
        return SeatingState(Next.WAIT if age < START_AGAIN_SECONDS else Next.STEP_FAILED)
    if sample.absent and (age > patience_seconds or ended):
        missing = [node for node in sample.seats if node not in sample.gpus and node not in bad]
        bad = {**bad, **dict.fromkeys(missing, f"no seat there after {age:.1f} s")}
        return SeatingState(Next.REPLACE if bad else Next.AGAIN, bad, sample.absent)
    if not bad and not sample.absent:
        if not sample.gpus.keys() >= set(sample.seats):  # condemned when the step was started, and not any more
            return SeatingState(Next.AGAIN)
        bad = differing_gpus(sample) if one_rank_a_gpu else {}
        return SeatingState(Next.REPLACE if bad else Next.GO, bad)
    return SeatingState(Next.REPLACE if bad else Next.WAIT, bad)


def patience(seat_seconds: float, usual_seconds: float | None) -> float:
    """Time for seats to answer. At first Slurm may run a Prolog on each node; later the usual time is known."""
    if usual_seconds is None:
        return seat_seconds
    return min(seat_seconds, max(PATIENCE_SECONDS_MIN, 3 * usual_seconds))


def attempts_max(launch: int) -> int:
    """Consecutive steps that may fail before any node answers: more for a gang that has run once."""
    return START_ATTEMPTS_MAX if launch == 0 else RESTART_ATTEMPTS_MAX


def differing_gpus(sample: SeatingSample) -> dict[str, str]:
    """One rank for each GPU needs the same number on every node: a node with another number than most has lost some."""
    usual = Counter(sample.gpus.values()).most_common(1)[0][0]
    return {
        node: f"it shows {count} GPUs, most others {usual}; see --procs-per-node"
        for node, count in sample.gpus.items()
        if count != usual
    }
