"""Nodes on which no new job may start now: agents pass this on to Slurm's Prolog."""

from __future__ import annotations

from understudy_controlplane.config import Mode
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot


def unfit_nodes(snapshot: Snapshot) -> dict[str, str]:
    """Node → why. Only nodes that the control plane took out of service and that Slurm has not drained yet.

    The guards were asked before, so a wrong rule that condemns every node closes no more nodes than it may drain. Once
    Slurm has drained the node, Slurm keeps jobs away; a refusal that outlived the drain would hit the first job after
    an administrator has resumed the node.
    """
    if snapshot.mode is Mode.OBSERVE or snapshot.operator.paused or snapshot.slurm.error:
        return {}
    return {
        node.name: f"quarantined by row {node.record.table_row}, and not drained in Slurm yet"
        for node in snapshot.set_apart
        if node.state is NodeState.QUARANTINED
        and node.record.drained_at is None
        and node.slurm is not None
        and not node.slurm.draining
        and not snapshot.is_in_observed_part(node.name)
    }
