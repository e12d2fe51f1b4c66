"""What a user of the cluster sees: their own jobs, how they are, and planned maintenance. Pure.

Nothing of it comes from operators' words: reasons, notes and who asked for what are for operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.decide.notices import shown
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import job_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store.queries import Record

FIT = frozenset({NodeState.IN_SERVICE, NodeState.PROBATION})
ENDED, WAITS, UNMANAGED, WELL = "ended", "waits", "not managed by Understudy", "runs well"


@dataclass(frozen=True, slots=True)
class OwnJob:
    record: Record
    health: str
    is_ill: bool = False


@dataclass(frozen=True, slots=True)
class OwnMaintenance:
    """`jobs`: own ones that run on its nodes, and on how many of them."""

    nodes: int
    until: float
    jobs: tuple[tuple[int, int], ...]


def own_jobs(records: Sequence[Record], snapshot: Snapshot) -> list[OwnJob]:
    """`records` as the API shows them to this user. What needs a look comes first, then what runs."""
    shown_now = {(key.job_id, key.submit_at): job for key, job in snapshot.jobs.items()}
    found = [_own_job(record, shown_now.get((record["job_id"], record["submit_at"])), snapshot) for record in records]
    order = {WELL: 1, UNMANAGED: 1, WAITS: 2, ENDED: 3}
    return sorted(found, key=lambda one: order.get(one.health, 0))


def _own_job(record: Record, job: Job | None, snapshot: Snapshot) -> OwnJob:
    if job is None or job.slurm.ended:
        return OwnJob(record, ENDED)
    if not job.managed:
        return OwnJob(record, UNMANAGED)
    if record["paused"]:
        return OwnJob(record, "paused: Understudy leaves it alone")
    trouble = _trouble(job, snapshot)
    if trouble:
        return OwnJob(record, trouble, is_ill=True)
    return OwnJob(record, WELL if job.running else WAITS)


def _trouble(job: Job, snapshot: Snapshot) -> str:
    if any(job_of(one.plan) == job.key for one in snapshot.recoveries):
        return "is being restarted"
    incident = snapshot.incidents.get(Subject.of_gang(job.key))
    if incident is not None:
        return incident.signal.replace("_", " ")
    known = snapshot.views_of(job) if job.running else []
    ill = [f"{node.name} ({node.state.value.replace('_', ' ')})" for node in known if node.state not in FIT]
    return f"runs, on {shown(ill)}" if ill else ""


def own_maintenance(user_id: int, snapshot: Snapshot) -> list[OwnMaintenance]:
    """Soonest end first."""
    own = [job for job in snapshot.jobs.values() if job.slurm.user_id == user_id and job.running]
    found = []
    for one in snapshot.operator.maintenances:
        nodes = set(one.unfinished)
        jobs = [(job.key.job_id, len(nodes.intersection(job.slurm.nodes))) for job in own]
        found.append(OwnMaintenance(len(nodes), one.until, tuple((job, count) for job, count in jobs if count)))
    return sorted(found, key=lambda one: one.until)
