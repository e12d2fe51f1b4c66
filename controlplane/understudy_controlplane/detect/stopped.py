"""Managed gangs that wait in Slurm's queue because a fault has stopped them.

Slurm, its owner, an administrator, a Prolog or a preemption may have requeued the job before the control plane did:
after that no job runs on the node at fault, and a rule that asks which gangs run there finds none. So this one asks
each gang that waits: is a node of its last attempt out of service, since before that attempt ended? Then it waits for
nodes, and the control plane may hold some that it could use.

A job that a person holds or puts off, or that waits for other jobs or for a limit, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import HELD_BY_PEOPLE
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot

KNOWN_LATER_SECONDS = 30.0
"""A fault that has stopped a gang may be known this long after the job is back in the queue: Slurm drains a node for
its Prolog, and the agent sends a line of the kernel log, at about that time.
"""


def stopped(snapshot: Snapshot) -> Iterator[Finding]:
    """One for each gang, about the node that failed first."""
    for key in snapshot.last_attempts:
        if snapshot.recovery_of(key) is None and (found := stopped_gang(snapshot, key)) is not None:
            yield found


def stopped_gang(snapshot: Snapshot, key: JobKey) -> Finding | None:
    job, last = snapshot.jobs.get(key), snapshot.last_attempts.get(key)
    if job is None or last is None or not waits_for_nodes(job):
        return None
    until = requeued_at(snapshot, job) - snapshot.slurm_ahead_seconds + KNOWN_LATER_SECONDS
    since = {name: at for name in last.nodes if (at := out_since(snapshot, name)) is not None}
    causes = sorted((at, name) for name, at in since.items() if at <= until)
    held_up = job.slurm.completing and any(not _is_down(snapshot, name) for name in since.keys() & {*job.slurm.nodes})
    return _finding(job, causes[0], sorted(since)) if causes and not held_up else None


def waits_for_nodes(job: Job) -> bool:
    """Of a job that was requeued: it would run if it had nodes, or is about to pend."""
    return job.slurm.waits_for_nodes or (job.slurm.completing and job.slurm.priority > 0)


def _is_down(snapshot: Snapshot, name: str) -> bool:
    """Otherwise a node that does not answer keeps the job COMPLETING, and it starts nowhere before."""
    slurm = snapshot.nodes[name].slurm
    return slurm is not None and slurm.down


def requeued_at(snapshot: Snapshot, job: Job) -> float:
    """By slurmctld's clock: it renews the submit time when the job is back in the queue."""
    return snapshot.slurm_now if job.slurm.completing else float(job.slurm.submit_at)


def _finding(job: Job, first: tuple[float, str], out: Sequence[str]) -> Finding:
    at, name = first
    are = "is" if len(out) == 1 else "are"
    return Finding(
        Signal.GANG_STOPPED,
        "stopped.gang",
        name,
        at,
        f"job {job.key.job_id} ran on {', '.join(out)}, which {are} out of service, and waits in Slurm's queue",
        Evidence({"job": job.key.job_id, "restart_count": job.slurm.restart_count, "out": [*out]}),
        job=job.key,
        nodes=tuple(out),
    )


def out_since(snapshot: Snapshot, name: str) -> float | None:
    """Since when no job can start on the node, by whatever action; None: one can, or Slurm has it off,
    rebooting or in maintenance.
    """
    node = snapshot.nodes.get(name)
    if node is None or node.slurm is None or node.slurm.service is Service.AWAY:
        return None
    since: list[float] = []
    if node.record.at_fault or node.state in HELD_BY_PEOPLE:
        incident = snapshot.incident_of(name)
        since.append(node.record.since)
        since += [incident.fault_at or incident.opened_at] if incident is not None else []
    if node.slurm.taken_out:
        at = snapshot.custody(name).since
        since.append(at - snapshot.slurm_ahead_seconds if at else snapshot.now)
    elif not node.slurm.responding:
        since.append(node.slurmd_silent_since or snapshot.now)
    return min(since, default=None)
