"""Chooses records that may be deleted: those before the limit of their class. Pure."""

from __future__ import annotations

from math import inf

from understudy_controlplane.config import Retention
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.record_class import Limits, RecordClass


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
