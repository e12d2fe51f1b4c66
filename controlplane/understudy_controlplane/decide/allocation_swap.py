"""Gangs that a launcher drives: whether a fault can be dealt with within the job's own allocation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from understudy_controlplane.config import Config
from understudy_controlplane.decide import plans
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import Plan, Recovery, RecoveryKind, StepName, StepStatus
from understudy_controlplane.fleet.snapshot import Snapshot

HEARD_SECONDS = 12.0
"""A launcher says something every five seconds, through its node's agent."""

RECONNECT_SECONDS = 10.0
"""So long after our own start a launcher may take to be heard again."""


def seats_of(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """Nodes on which the job's ranks run: without its launcher's word, all of its nodes."""
    gang = snapshot.gangs.get(job.key)
    return gang.seats if gang is not None else job.slurm.nodes


def to_be_heard_again(snapshot: Snapshot, gang: Gang) -> bool:
    """The control plane has just started and knows of the launcher from its database alone."""
    return gang.heard_at is None and snapshot.now - snapshot.started_at < RECONNECT_SECONDS


def why_not(  # noqa: PLR0911 - a list: a return for each reason
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], bad: Collection[str]
) -> str:
    """Why the launcher is not asked, and the gang moves to the pool instead; empty: it is asked.

    `bad` are all nodes that are condemned in this round.
    """
    gang = snapshot.gangs.get(job.key)
    if gang is None:
        return "no launcher drives it"
    if gang.heard_at is None or snapshot.now - gang.heard_at > HEARD_SECONDS:
        return "its launcher is not heard"
    if gang.leaving:
        return f"its launcher starts nothing any more ({gang.phase})"
    if (job.key, job.slurm.restart_count) in snapshot.disobeyed:
        return "its launcher did not do as it was told before"
    if any(finding.dead and finding.node == gang.host for finding in findings):
        return f"its launcher ran on {gang.host}, which is dead"
    earlier = snapshot.recovery_of(job.key)
    if earlier is not None and _is_on_its_way_to_the_pool(earlier):
        return "it is on its way to seats from the pool"
    if any(finding.signal is Signal.SEAT_LOST for finding in findings):
        return "a seat that it was promised is lost"
    leaving = [name for name in gang.seats if name in bad]
    spares = healthy_spares(snapshot, gang, bad)
    if len(gang.seats) - len(leaving) + min(len(spares), len(leaving)) < min(gang.nodes_min, len(gang.seats)):
        return f"{len(leaving)} of its nodes are to be replaced and its allocation has {len(spares)} healthy spares"
    return ""


def healthy_spares(snapshot: Snapshot, gang: Gang, bad: Collection[str]) -> list[str]:
    """Spares of the allocation that nothing is known against."""
    return [
        name
        for name in gang.spares
        if name not in bad
        and (node := snapshot.nodes.get(name)) is not None
        and node.state is NodeState.IN_SERVICE
        and node.heard_at is not None
        and node.slurm is not None
        and not node.slurm.draining
        and not node.slurm.down
    ]


def _is_on_its_way_to_the_pool(recovery: Recovery) -> bool:
    if recovery.plan.kind is not RecoveryKind.POOL_SWAP:
        return False
    release = recovery.step(StepName.RELEASE_SEATS)
    return release is None or release.status is not StepStatus.DONE


def swap(snapshot: Snapshot, job: Job, findings: Sequence[Finding], config: Config) -> tuple[Plan, str]:
    """The plan, and what happens in words."""
    gang = snapshot.gangs[job.key]
    plan = plans.allocation_plan(snapshot, job, gang, findings, config)
    seated = [name for name in plan.failed_nodes if name in gang.seats]
    number = job.key.job_id
    if not seated:
        return plan, f"job {number} does not use it now; its launcher is told not to"
    return plan, f"the launcher of job {number} puts spares of its own allocation in the place of {', '.join(seated)}"
