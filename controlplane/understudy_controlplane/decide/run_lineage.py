"""Finds the earlier jobs of its run that a job continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from understudy_controlplane.fleet.job import RunJob

JOBS_MAX = 100
"""The newest of a run."""

OVERLAP_SECONDS_MAX = 60.0
"""Overlap of jobs that run one after another: Slurm may show the next one before it shows the end of the last."""

NAME_IT = "set UNDERSTUDY_RUN to the id of the job that it continues, or to $SLURM_JOB_ID for a new training"


@dataclass(frozen=True, slots=True)
class Lineage:
    jobs: Sequence[RunJob] = ()  # newest first
    doubt: str = ""  # why it is not known which of the run's jobs this one continues
    note: str = ""  # why it begins although there were jobs of its name


def lineage(job: RunJob, others: Iterable[RunJob], named: bool) -> Lineage:
    """Jobs run one after another in a run. A user who names the run says that they do. By the name of the job and its
    folder alone:
    - Jobs that ran at the same time are different trainings: none of them continues the other, and which one a later
      job continues is not known.
    - A job that ended well has finished its training: what comes after it is a new one.
    - A job with other arguments is another experiment, unless Slurm interrupted the one before: then the user may have
      changed them to continue it, and only the user knows.
    """
    before = sorted(others, key=lambda one: -one.began_at)
    if not named:
        before = [one for one in before if one.ended_at < inf and not _overlap(one, job)]
    older = f"its run has more than {JOBS_MAX} jobs, of which the newest saved nothing" if before[JOBS_MAX:] else ""
    before = before[:JOBS_MAX]
    if named:
        return Lineage(tuple(before), older)
    alike, finished = _since_the_last_that_ended_well([one for one in before if not _differ(one, job)])
    for later, earlier in pairwise(alike):
        if _overlap(later, earlier):
            why = f"jobs {earlier.key.job_id} and {later.key.job_id} of its name and folder ran at the same time"
            return Lineage(doubt=f"{why}; {NAME_IT}")
    if alike or not before:
        return Lineage(tuple(alike), older)
    if finished is not None:
        return _begins(finished, "ended well")
    last = before[0]
    if last.was_given_up:
        return _begins(last, "ran with other arguments")
    why = f"job {last.key.job_id} of its name and folder ran with other arguments, and was interrupted"
    return Lineage(doubt=f"{why}; {NAME_IT}")


def _begins(before: RunJob, what: str) -> Lineage:
    number = before.key.job_id
    return Lineage(note=f"job {number} of its name and folder {what}; UNDERSTUDY_RUN={number} would continue it")


def _differ(one: RunJob, other: RunJob) -> bool:
    """True if they are known to run different things."""
    return bool(one.arguments and other.arguments) and one.arguments != other.arguments


def _since_the_last_that_ended_well(newest_first: list[RunJob]) -> tuple[list[RunJob], RunJob | None]:
    """And that one; None: none has."""
    for at, one in enumerate(newest_first):
        if one.ended_well:
            return newest_first[:at], one
    return newest_first, None


def _overlap(one: RunJob, other: RunJob) -> bool:
    return min(one.ended_at, other.ended_at) - max(one.began_at, other.began_at) > OVERLAP_SECONDS_MAX
