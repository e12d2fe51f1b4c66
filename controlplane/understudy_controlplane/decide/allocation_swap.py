"""Gangs that a launcher drives: whether spares of the job's own allocation can replace bad nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from understudy_controlplane.config import Config
from understudy_controlplane.decide import plans, spares
from understudy_controlplane.decide.placement import NO_PLACEMENT, Placement, layout_of, place
from understudy_controlplane.decide.whole_blocks import Leaving, has_units, rule_of
from understudy_controlplane.detect.processes import outside_of_jobs
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, PoolSwapPlan, Recovery, StepName, StepStatus
from understudy_controlplane.fleet.snapshot import Snapshot

HEARD_SECONDS = 12.0
"""The agent reports a launcher every five seconds."""

RECONNECT_SECONDS = 10.0
"""Time for agents to report launchers again after the control plane has started."""


def seats_of(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """Nodes on which the job's ranks run: all of its nodes where no launcher reports them."""
    gang = snapshot.progress.gangs.get(job.key)
    return gang.seats if gang is not None else job.slurm.nodes


def may_reconnect(snapshot: Snapshot, gang: Gang) -> bool:
    """The control plane has just started and knows the launcher only from its database."""
    return gang.heard_at is None and snapshot.now - snapshot.started_at < RECONNECT_SECONDS


def why_not(  # noqa: PLR0911 - a list: a return for each reason
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], bad: Collection[str]
) -> str:
    """Why the gang moves to nodes from the pool instead; empty: the launcher gets the order.

    `bad`: all nodes that are taken out of service in this round.
    """
    gang = snapshot.progress.gangs.get(job.key)
    if gang is None:
        return "no launcher drives it"
    if job.slurm.not_alone:
        return f"it {job.slurm.not_alone}"
    if gang.heard_at is None or snapshot.now - gang.heard_at > HEARD_SECONDS:
        return "its launcher does not report"
    if gang.leaving:
        return f"its launcher starts nothing any more ({gang.state.phase})"
    if (job.key, job.slurm.restart_count) in snapshot.history.disobeyed:
        return "its launcher did not carry out an earlier order"
    if any(finding.dead and finding.node == gang.host for finding in findings):
        return f"its launcher ran on {gang.host}, which is dead"
    earlier = snapshot.recovery_of(job.key)
    if earlier is not None and _is_moving_to_the_pool(earlier):
        return "it is moving to seats from the pool"
    if any(finding.signal is Signal.SEAT_LOST for finding in findings):
        return "a seat that was reserved for it is lost"
    leaving = [name for name in gang.seats if name in bad]
    healthy = healthy_spares(snapshot, gang, bad)
    if len(gang.seats) - len(leaving) + min(len(healthy), len(leaving)) < min(gang.state.nodes_min, len(gang.seats)):
        return f"{len(leaving)} of its nodes must be replaced and its allocation has {len(healthy)} healthy spares"
    rule = rule_of(snapshot, job, gang.seats, requeued=False) if leaving else None
    if rule and rule.required and not has_units(snapshot, rule, Leaving(job, gang.seats, leaving, healthy)):
        return f"{rule.why}, and no block of its allocation has enough healthy spares for that"
    return ""


def healthy_spares(snapshot: Snapshot, gang: Gang, bad: Collection[str]) -> list[str]:
    """Spares of the allocation about which nothing bad is known."""
    return [
        name
        for name in gang.spares
        if name not in bad
        and name not in snapshot.without_fabric
        and (node := snapshot.nodes.get(name)) is not None
        and node.state is NodeState.IN_SERVICE
        and node.heard_at is not None
        and node.slurm is not None
        and not node.slurm.taken_out
        and not node.has_port_down
        and not outside_of_jobs(snapshot, node)
    ]


def _is_moving_to_the_pool(recovery: Recovery) -> bool:
    if not isinstance(recovery.plan, PoolSwapPlan):
        return False
    release = recovery.step(StepName.RELEASE_SEATS)
    return release is None or release.status is not StepStatus.DONE


def placed(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], config: Config, bad: Collection[str]
) -> Placement:
    """Spare of the allocation that costs the gang least in the place of each node that it leaves."""
    gang = snapshot.progress.gangs[job.key]
    left = [name for name in dict.fromkeys(one.node for one in findings) if name in gang.seats]
    standing = spares.standing_of(snapshot, config)
    healthy = sorted(healthy_spares(snapshot, gang, {*bad, *left}), key=standing)
    return place(snapshot.topology, layout_of(snapshot, job), left, healthy, standing)


def swap(
    snapshot: Snapshot,
    job: Job,
    findings: Sequence[Finding],
    config: Config,
    undrained: Set[str] = frozenset(),
    placement: Placement = NO_PLACEMENT,
) -> tuple[AllocationSwapPlan, str]:
    """The plan, and a description of it."""
    gang = snapshot.progress.gangs[job.key]
    plan = plans.allocation_plan(
        snapshot, job, gang, findings, config, undrained=undrained, places=placement.by_node_left
    )
    seated = [name for name in (*plan.nodes, *plan.leaving) if name in gang.seats]
    number = job.key.job_id
    if not seated:
        return plan, f"job {number} does not use the node now; its launcher must not use it again"
    words = f"the launcher of job {number} replaces {', '.join(seated)} with spares of its own allocation"
    return plan, f"{words}{placement.words}"
