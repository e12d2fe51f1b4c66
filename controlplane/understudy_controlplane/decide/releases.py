"""Jobs that Slurm holds because Understudy's Prolog kept them off a node. These are released, and no others."""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, plans
from understudy_controlplane.decide.table import row_without_node
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.job import Job, Refusal
from understudy_controlplane.fleet.recovery import ReleaseJobPlan
from understudy_controlplane.fleet.snapshot import Snapshot

HELD_AFTER_SECONDS_MAX = 3600.0
"""Slurm renews the submit time when the job is back in the queue: after the Epilogs of its other nodes."""

CLOCKS_APART_SECONDS_MAX = 300.0
"""MUNGE tolerates no more."""


def releases(snapshot: Snapshot, config: Config) -> list[Decision]:
    """For every job, also those that did not ask for Understudy, because its Prolog delayed them."""
    under_way = {one.plan.job for one in snapshot.recoveries if isinstance(one.plan, ReleaseJobPlan)}
    decisions: list[Decision] = []
    for job in snapshot.jobs.values():
        if not job.slurm.held_after_failed_launch or job.key in under_way:
            continue
        refusals = [one for one in snapshot.refusals if refused(job, one)]
        if refusals:
            decisions.append(_release(snapshot, job, refusals, config))
    return decisions


def refused(job: Job, refusal: Refusal) -> bool:
    """Whether this refusal is why Slurm holds the job: the same job, and the attempt just before."""
    if refusal.job_id != job.key.job_id:
        return False
    if refusal.restart_count is not None and refusal.restart_count != job.slurm.restart_count - 1:
        return False
    return -CLOCKS_APART_SECONDS_MAX <= job.slurm.submit_at - refusal.at <= HELD_AFTER_SECONDS_MAX


def _release(snapshot: Snapshot, job: Job, refusals: list[Refusal], config: Config) -> Decision:
    row = row_without_node(Signal.JOB_HELD)
    nodes = sorted({one.node for one in refusals})
    reason = f"job {job.key.job_id} is held because Understudy's Prolog kept it off {', '.join(nodes)}: {row.why}"
    objection = guards.object_to_any(snapshot) or _not_alone(job) or _too_often(snapshot, job, config)
    return Decision(
        row=row.number,
        subject=f"job {job.key.job_id}",
        action=Action.NOTHING if objection else row.action,
        because=objection.because if objection else Because.RULE,
        reason=f"{reason}; but nothing is done, because {objection.words}" if objection else reason,
        evidence=Evidence(
            {
                "job": job.key.job_id,
                "submit_at": job.key.submit_at,
                "restart_count": job.slurm.restart_count,
                "nodes": list(nodes),
                "refused": refusals[0].reason,
            }
        ),
        plan=None if objection else plans.release_plan(job),
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
