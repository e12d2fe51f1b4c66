"""What the control plane itself keeps a job from, and gives it back: a start, where Slurm holds the job because
Understudy's Prolog kept it off a node; nodes that were excluded for a fault which is repaired; and seats that were held
for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job, JobKey, Refusal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import SEATS_PREFIX, DeleteSeatsPlan, ReleaseJobPlan, SwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot

HELD_AFTER_SECONDS_MAX = 3600.0
"""Slurm renews the submit time when the job is back in the queue: after the Epilogs of its other nodes."""

CLOCKS_APART_SECONDS_MAX = 300.0
"""MUNGE tolerates no more."""


def held_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    """Every such job, also one that did not ask for Understudy, because its Prolog delayed it."""
    under_way = _under_way(snapshot)
    for job in snapshot.jobs.values() if snapshot.history.refusals else ():
        if not job.slurm.held_after_failed_launch or job.key in under_way:
            continue
        refusals = [one for one in snapshot.history.refusals if refused(snapshot, job, one)]
        if refusals:
            yield _held(job, refusals)


def excluding_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    """Pending jobs that may not start on nodes which were returned to service after the exclusion."""
    under_way = _under_way(snapshot)
    for key, excluded in snapshot.history.exclusions.items():
        job = snapshot.jobs.get(key)
        if job is None or not job.slurm.pending or key in under_way or snapshot.recovery_of(key) is not None:
            continue
        nodes = tuple(name for name in job.slurm.excluded_nodes if name in excluded)
        nodes = tuple(name for name in nodes if _is_back(snapshot.nodes.get(name), excluded[name]))
        if nodes:
            words = f"job {key.job_id} may not start on {', '.join(nodes)}, which are back in service"
            evidence = Evidence({"job": key.job_id, "nodes": [*nodes]})
            yield Finding(
                Signal.EXCLUSION_LEFT, "job.exclusion_left", "", snapshot.now, words, evidence, job=key, nodes=nodes
            )


def left_seats(snapshot: Snapshot) -> Iterator[Finding]:
    """Seats left by a slurmctld that refused to delete the reservation for too long, or that crashed and forgot it."""
    moving = {one.plan.job.job_id for one in snapshot.recoveries if isinstance(one.plan, SwapPlan)}
    going = {one.plan.reservation for one in snapshot.recoveries if isinstance(one.plan, DeleteSeatsPlan)}
    keys = {key.job_id: key for key in snapshot.jobs}
    for name, one in snapshot.slurm.reservations.items():
        number = name.removeprefix(SEATS_PREFIX)
        if not name.startswith(SEATS_PREFIX) or not number.isdecimal() or not one.made_for_one:
            continue
        if int(number) in moving or name in going:
            continue
        key = keys.get(int(number), JobKey("", int(number), 0))  # Slurm may have forgotten the job
        job = snapshot.jobs.get(key)
        if job is not None and not one.made_for(job.slurm.user):
            continue  # created by an administrator, for others
        words = f"reservation {name}, of {', '.join(one.nodes)}, is left over"
        evidence = Evidence({"reservation": name, "nodes": [*one.nodes]})
        yield Finding(Signal.SEATS_LEFT, "job.seats_left", "", snapshot.now, words, evidence, job=key, nodes=one.nodes)


def _under_way(snapshot: Snapshot) -> set[JobKey]:
    return {one.plan.job for one in snapshot.recoveries if isinstance(one.plan, ReleaseJobPlan)}


def _is_back(node: NodeView | None, excluded_at: float) -> bool:
    return (
        node is not None
        and node.state in (NodeState.IN_SERVICE, NodeState.PROBATION)
        and (node.record.cleared_at > excluded_at)
    )


def release(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [
        _delete_seats(current, *one) if one.finding.signal is Signal.SEATS_LEFT else _release(current, *one)
        for one in entered
    ]


def refused(snapshot: Snapshot, job: Job, refusal: Refusal) -> bool:
    """True if this refusal is why Slurm holds the job: the same job, and the attempt just before."""
    if refusal.job_id != job.key.job_id:
        return False
    if refusal.restart_count is not None and refusal.restart_count != job.slurm.restart_count - 1:
        return False
    held_after = (job.slurm.submit_at - at for at in snapshot.refused_at(refusal))
    return any(-CLOCKS_APART_SECONDS_MAX <= seconds <= HELD_AFTER_SECONDS_MAX for seconds in held_after)


def _held(job: Job, refusals: Sequence[Refusal]) -> Finding:
    nodes = sorted({one.node for one in refusals})
    return Finding(
        Signal.JOB_HELD,
        "prolog.job_held",
        "",
        min(one.received_at for one in refusals),
        f"job {job.key.job_id} is held because Understudy's Prolog kept it off {', '.join(nodes)}",
        Evidence(
            {
                "job": job.key.job_id,
                "submit_at": job.key.submit_at,
                "restart_count": job.slurm.restart_count,
                "nodes": [*nodes],
                "refused": refusals[0].reason,
            }
        ),
        job=job.key,
        nodes=tuple(nodes),
    )


def _release(current: Round, row: Row, finding: Finding) -> Decision:
    snapshot, config = current.snapshot, current.config
    assert finding.job is not None
    job = snapshot.jobs[finding.job]
    general = guards.object_to_any(snapshot, finding) or guards.object_to_paused_job(snapshot, job.key)
    objection = general or _not_alone(job) or _too_often(snapshot, job, config)
    if objection is not None:
        return guards.held_back(row, finding, objection)
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        finding=finding,
        evidence=finding.evidence,
        plan=plans.release_plan(job) if finding.signal is Signal.JOB_HELD else plans.allow_plan(job, finding.nodes),
    )


def _delete_seats(current: Round, row: Row, finding: Finding) -> Decision:
    snapshot = current.snapshot
    objection = guards.object_to_any(snapshot, finding)
    if objection is not None:
        return guards.held_back(row, finding, objection)
    assert finding.job is not None
    name = f"{SEATS_PREFIX}{finding.job.job_id}"
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        finding=finding,
        evidence=finding.evidence,
        plan=plans.delete_seats_plan(snapshot.slurm.reservations[name]),
    )


def _not_alone(job: Job) -> guards.Objection | None:
    if not job.slurm.not_alone:
        return None
    words = f"it {job.slurm.not_alone}: left to a person (scontrol release)"
    return guards.Objection(Because.RULE, words)


def _too_often(snapshot: Snapshot, job: Job, config: Config) -> guards.Objection | None:
    limit = config.jobs.releases_per_hour_max
    if sum(key == job.key for _, key in snapshot.history.releases) < limit:
        return None
    words = (
        f"it was released {times(limit)} within the hour, which is the limit: it waits (`scontrol release` ends that)"
    )
    return guards.Objection(Because.RELEASE_BUDGET, words)
