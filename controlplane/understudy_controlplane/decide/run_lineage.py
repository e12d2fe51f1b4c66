"""Which earlier jobs of its run a job continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from understudy_controlplane.fleet.job import RunJob

JOBS_MAX = 100
"""The newest of a run."""

OVERLAP_SECONDS_MAX = 60.0
"""Of jobs that run one after another: Slurm may show the next one before it shows the end of the last."""

NAME_IT = "set UNDERSTUDY_RUN to name the run that it continues, or a new one"


@dataclass(frozen=True, slots=True)
class Lineage:
    jobs: Sequence[RunJob] = ()  # newest first
    doubt: str = ""  # why it is not known which of the run's jobs this one continues


def lineage(job: RunJob, others: Iterable[RunJob], named: bool) -> Lineage:
    """Jobs run one after another in a run. A user who names the run says that they do. By the name of the job and its
    folder alone, jobs that ran at the same time are different trainings: none of them continues the other, and which
    one a later job continues is not known. A job that ended well may have finished its training: what comes after it
    is another one, or continues it, and only the user knows.
    """
    before = sorted(others, key=lambda one: -one.began_at)
    if not named:
        before = [one for one in before if one.ended_at < inf and not _overlap(one, job)]
    older = f"its run has more than {JOBS_MAX} jobs, of which the newest saved nothing" if before[JOBS_MAX:] else ""
    before = before[:JOBS_MAX]
    if named:
        return Lineage(tuple(before), older)
    before, finished = _since_the_last_that_ended_well(before)
    if finished is not None and not before:
        return Lineage(doubt=f"job {finished.key.job_id} of its name and folder ended well; {NAME_IT}")
    for later, earlier in pairwise(before):
        if _overlap(later, earlier):
            why = f"jobs {earlier.key.job_id} and {later.key.job_id} of its name and folder ran at the same time"
            return Lineage(doubt=f"{why}; {NAME_IT}")
    return Lineage(tuple(before), older)


def _since_the_last_that_ended_well(newest_first: list[RunJob]) -> tuple[list[RunJob], RunJob | None]:
    """And that one; None: none has."""
    for at, one in enumerate(newest_first):
        if one.ended_well:
            return newest_first[:at], one
    return newest_first, None


def _overlap(one: RunJob, other: RunJob) -> bool:
    return min(one.ended_at, other.ended_at) - max(one.began_at, other.began_at) > OVERLAP_SECONDS_MAX
