"""Which nodes no new job may start on now: the word that agents hand on to Slurm's Prolog."""

from __future__ import annotations

from understudy_controlplane.config import Mode
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot


def unfit_nodes(snapshot: Snapshot) -> dict[str, str]:
    """Node → why. Only nodes that we took out of service and that Slurm has not drained yet.

    The guards had their say before a node got there, so a fault of ours that condemns every node closes no more of them
    than it may drain. Once Slurm has our drain it keeps jobs away by itself; a word against the node that outlived that
    would hit the first job after a person has resumed it.
    """
    if snapshot.mode is not Mode.ACT or snapshot.paused or snapshot.slurm_error:
        return {}
    return {
        name: f"quarantined by row {node.record.table_row}, and not drained in Slurm yet"
        for name, node in snapshot.nodes.items()
        if node.state is NodeState.QUARANTINED
        and node.record.drained_at is None
        and node.slurm is not None
        and not node.slurm.draining
    }
