"""Managed gangs that wait for nodes because a fault has stopped them: in Slurm's queue, or in an allocation that has
too few for their launcher.

Slurm, its owner, an administrator, a Prolog or a preemption may have requeued the job before the control plane did:
after that no job runs on the node at fault, and a rule that asks which gangs run there finds none. So this one asks
each gang that waits: is a node of its last attempt out of service, since before that attempt ended, or since Slurm was
still delaying the next one? Then it waits for nodes, and the control plane may hold some that it could use.

A job that a person holds or puts off, or that waits for other jobs or for a limit, is left alone.

A launcher whose allocation has no spare waits a minute for the job to be requeued, then ends, and the job has failed.
It sees more than the control plane may: Slurm takes a node whose slurmd is dead out of a job with --no-kill, while its
agent reports and its ranks work on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_controlplane.detect.silence import LAUNCHER_AGE_MAX_SECONDS
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import HELD_BY_PEOPLE
from understudy_controlplane.fleet.recovery import PoolSwapPlan, Recovery, StepName
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot

KNOWN_LATER_SECONDS = 30.0
"""A fault that has stopped a gang may be known this long after the job is back in the queue: Slurm drains a node for
its Prolog, and the agent sends a line of the kernel log, at about that time.
"""

VERDICT_SECONDS = 5.0
"""A node that a launcher has lost reports and answers for this long after that: no other rule is about to judge it."""


def stopped(snapshot: Snapshot) -> Iterator[Finding]:
    """One for each gang, about the node that failed first."""
    for key in snapshot.progress.last_attempts:
        recovery, found = snapshot.recovery_of(key), stopped_gang(snapshot, key)
        if found is not None and (recovery is None or leaves_it_to_slurm(recovery)):
            yield found
    for key in snapshot.progress.gangs:
        if snapshot.recovery_of(key) is None:
            yield from _left_by_launcher(snapshot, snapshot.jobs[key])


def leaves_it_to_slurm(recovery: Recovery) -> bool:
    """There was no spare for the gang: one that comes later is its own all the same."""
    return isinstance(recovery.plan, PoolSwapPlan) and StepName.HOLD_SEATS not in recovery.plan.steps


def stopped_gang(snapshot: Snapshot, key: JobKey) -> Finding | None:
    """The fault that has stopped the gang, which would run if it had nodes."""
    job = snapshot.jobs.get(key)
    return fault_behind(snapshot, key) if job is not None and waits_for_nodes(job) else None


def fault_behind(snapshot: Snapshot, key: JobKey) -> Finding | None:
    """The fault that has ended the gang's last attempt, whatever the job waits for now."""
    job, last = snapshot.jobs.get(key), snapshot.progress.last_attempts.get(key)
    if job is None or last is None or not (job.slurm.pending or job.slurm.completing):
        return None
    spoilt = job.slurm.submit_at == job.key.submit_at  # by a dead node: when it was requeued is not known
    until = snapshot.now if spoilt else requeued_at(snapshot, job) - snapshot.slurm.ahead_seconds + KNOWN_LATER_SECONDS
    eligible_at = (job.slurm.eligible_at or 0) - snapshot.slurm.ahead_seconds
    since = {name: at for name in last.nodes if (at := out_since(snapshot, name)) is not None}
    causes = sorted(
        (at, name)
        for name, at in since.items()
        if at <= until or (at <= eligible_at and not is_given_away(snapshot, job, name))
    )
    held_up = job.slurm.completing and any(not is_down(snapshot, name) for name in since.keys() & {*job.slurm.nodes})
    return _finding(job, causes[0], sorted(since)) if causes and not held_up else None


def _left_by_launcher(snapshot: Snapshot, job: Job) -> Iterator[Finding]:
    given_up, heard_at = snapshot.given_up_by_launcher(job.key), snapshot.progress.gangs[job.key].heard_at
    if heard_at is None or snapshot.now - heard_at > LAUNCHER_AGE_MAX_SECONDS:
        return  # it may have ended
    still_there = given_up.keys() & {*job.slurm.nodes}
    if not given_up or not all(_is_not_judged(snapshot, name, given_up[name]) for name in still_there):
        return
    number, names = job.key.job_id, sorted(given_up)
    words = f"the launcher of job {number} has lost {', '.join(names)}, and waits for the job to be requeued"
    evidence = Evidence({"job": number, "restart_count": job.slurm.restart_count, "lost": [*names]})
    at = min(given_up.values())
    yield Finding(
        Signal.GANG_STOPPED, "stopped.launcher", names[0], at, words, evidence, job=job.key, nodes=tuple(names)
    )


def _is_not_judged(snapshot: Snapshot, name: str, lost_at: float) -> bool:
    """Nor about to be: a dead node has to be declared down before the requeue."""
    node = snapshot.nodes.get(name)
    if node is None or node.record.at_fault or node.slurmd_silent_since is not None:
        return node is None
    return node.heard_at is not None and node.heard_at > lost_at + VERDICT_SECONDS


def waits_for_nodes(job: Job) -> bool:
    """True if the job was requeued: it would run if it had nodes, or is about to pend."""
    return job.slurm.waits_for_nodes or (job.slurm.completing and job.slurm.priority > 0)


def is_down(snapshot: Snapshot, name: str) -> bool:
    """Otherwise a node that does not answer keeps the job COMPLETING, and it starts nowhere before."""
    slurm = snapshot.nodes[name].slurm
    return slurm is not None and slurm.down


def requeued_at(snapshot: Snapshot, job: Job) -> float:
    """Time of the requeue by slurmctld's clock: it renews the submit time when the job is back in the queue."""
    return snapshot.slurm_now if job.slurm.completing else float(job.slurm.submit_at)


def is_given_away(snapshot: Snapshot, job: Job, name: str) -> bool:
    """True if another job that runs there has begun since the requeue."""
    others = (one for one in snapshot.holders_of(name) if one.key != job.key)
    return any((one.slurm.start_at or 0) >= requeued_at(snapshot, job) for one in others)


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
        since.append(at - snapshot.slurm.ahead_seconds if at else snapshot.now)
    elif not node.slurm.responding:
        since.append(node.slurmd_silent_since or snapshot.now)
    return min(since, default=None)
