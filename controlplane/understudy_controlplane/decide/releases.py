"""Jobs that Slurm holds because Understudy's Prolog kept them off a node. These are released, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.round import Entered, Round
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job, Refusal
from understudy_controlplane.fleet.recovery import ReleaseJobPlan
from understudy_controlplane.fleet.snapshot import Snapshot

HELD_AFTER_SECONDS_MAX = 3600.0
"""Slurm renews the submit time when the job is back in the queue: after the Epilogs of its other nodes."""

CLOCKS_APART_SECONDS_MAX = 300.0
"""MUNGE tolerates no more."""


def held_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    """Every such job, also one that did not ask for Understudy, because its Prolog delayed it."""
    under_way = {one.plan.job for one in snapshot.recoveries if isinstance(one.plan, ReleaseJobPlan)}
    for job in snapshot.jobs.values():
        if not job.slurm.held_after_failed_launch or job.key in under_way:
            continue
        refusals = [one for one in snapshot.refusals if refused(job, one)]
        if refusals:
            yield _held(job, refusals)


def release(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_release(current, *one) for one in entered]


def refused(job: Job, refusal: Refusal) -> bool:
    """Whether this refusal is why Slurm holds the job: the same job, and the attempt just before."""
    if refusal.job_id != job.key.job_id:
        return False
    if refusal.restart_count is not None and refusal.restart_count != job.slurm.restart_count - 1:
        return False
    return -CLOCKS_APART_SECONDS_MAX <= job.slurm.submit_at - refusal.at <= HELD_AFTER_SECONDS_MAX


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
    objection = guards.object_to_any(snapshot) or _not_alone(job) or _too_often(snapshot, job, config)
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
        plan=plans.release_plan(job),
    )


def _not_alone(job: Job) -> guards.Objection | None:
    if not job.slurm.part_of:
        return None
    words = (
        f"it is part of a {job.slurm.part_of}, of which Slurm would release more: left to a person (scontrol release)"
    )
    return guards.Objection(Because.RULE, words)


def _too_often(snapshot: Snapshot, job: Job, config: Config) -> guards.Objection | None:
    limit = config.jobs.releases_per_hour_max
    if sum(key == job.key for _, key in snapshot.releases) < limit:
        return None
    words = f"it was released {limit} times within the hour, which is the limit: left to a person (scontrol release)"
    return guards.Objection(Because.RELEASE_BUDGET, words)
