"""Chooses records that may be deleted: those before the limit of their class. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf

from understudy_controlplane.config import Retention
from understudy_controlplane.fleet.durations import DAY_SECONDS

Limits = Mapping["RecordClass", float]
"""Class → the time before which its records may be deleted."""


class RecordClass(StrEnum):
    """Records that are kept for the same time. The audit is in none of them: it is kept for ever."""

    INCIDENTS = "incidents"  # what was wrong, what was decided and done, and what people asked for
    IDLE_DECISIONS = "idle_decisions"  # decisions to do nothing
    EVENTS = "events"  # what kernel logs, hardware and Prologs reported
    JOBS = "jobs"  # with their attempts and launches
    JOB_DETAILS = "job_details"  # what ranks reported
    SHARDS = "shards"  # that are packed
    GPUS = "gpus"
    TOKENS = "tokens"


def limits(policy: Retention, now: float, jobs_seen_at: float = inf, repairs_since: float = inf) -> Limits:
    """`jobs_seen_at`: when Slurm last showed any job. A job ages only while Slurm is read: after a month without a
    control plane, a job that still runs looks a month old until the first reading. `repairs_since`: the begin of the
    longest repair under way. What was tried on that node counts from there on.
    """
    days = {kept: getattr(policy, f"{kept.value}_days") * DAY_SECONDS for kept in RecordClass}
    found = {kept: now - seconds for kept, seconds in days.items()}
    for kept in (RecordClass.JOBS, RecordClass.JOB_DETAILS):
        found[kept] = min(now, jobs_seen_at) - days[kept]
    found[RecordClass.INCIDENTS] = min(found[RecordClass.INCIDENTS], repairs_since)
    return found
