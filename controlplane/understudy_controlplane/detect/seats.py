"""Seats that were planned for a gang and are not available, because an administrator or operator has taken the node.

A person may drain or hold a spare, reboot it or put it into maintenance while a recovery is on its way to it; or the
gang ran on a held node, and has to leave another one. The node is left to that person; the gang needs another one, or
its recovery would wait for this seat until it gives up.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.custody import Holder, in_slurm
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot


def lost_seats(snapshot: Snapshot) -> Iterator[Finding]:
    for recovery in snapshot.recoveries:
        if isinstance(recovery.plan, PoolSwapPlan) and _waits_for_seats(recovery.plan, snapshot):
            yield from _lost(recovery.id, recovery.plan, snapshot)


def _waits_for_seats(plan: PoolSwapPlan, snapshot: Snapshot) -> bool:
    job = snapshot.jobs.get(plan.job)
    return job is not None and job.slurm.pending


def _lost(recovery: int, plan: PoolSwapPlan, snapshot: Snapshot) -> Iterator[Finding]:
    for name in plan.seats:
        node = snapshot.nodes.get(name)
        # A quarantined node is replaced because of that; a node that is silent in Slurm may come back.
        if node is None or node.slurm is None or node.state is NodeState.QUARANTINED:
            continue
        slurm = node.slurm
        if in_slurm(slurm).holder is not Holder.FREE or slurm.service is Service.AWAY:
            by = f" by {slurm.reason_user} ({slurm.reason})" if slurm.reason else ""
            yield Finding(
                Signal.SEAT_LOST,
                "seats.lost",
                name,
                snapshot.slurm.read_at or snapshot.now,
                f"taken out of service{by} after a recovery had planned it for the gang",
                Evidence({"recovery": recovery, "reason": slurm.reason, "user": slurm.reason_user}),
                job=plan.job,
            )
