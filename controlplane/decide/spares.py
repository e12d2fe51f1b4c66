"""Which nodes are spares, and which spare is taken."""

from __future__ import annotations

import re

from controlplane.config import Spares
from controlplane.decide.guards import still_gathering
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.snapshot import Snapshot


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key: n9 before n10."""
    return tuple((int(part) if part.isdigit() else -1, part) for part in re.findall(r"\d+|\D+", name))


def free_spares(snapshot: Snapshot) -> list[str]:
    """Spares fit to take a gang's seat now, best first."""
    taken = {spare for recovery in snapshot.recoveries for spare in recovery.plan.spares}
    fit = [
        name
        for name, node in snapshot.nodes.items()
        if node.is_spare and name not in taken and _fit(node) and not snapshot.job_on(name)
    ]
    return sorted(fit, key=natural)


def pool_wanted(snapshot: Snapshot, policy: Spares) -> tuple[str, ...] | None:
    """The pool's node list as it should be; None: it is as it should be, or cannot be bettered now.

    Only idle nodes join, last by name first, so that the pool stays together. A spare that is out of service keeps
    its place in the reservation until it is drained: taking it out is the quarantine's step, not the pool's.
    """
    held = snapshot.reservations.get(policy.reservation)
    held_nodes = tuple(held.nodes) if held else ()
    missing = policy.count - len(held_nodes)
    if missing <= 0 or still_gathering(snapshot):
        return None
    elsewhere = {name for reservation in snapshot.reservations.values() for name in reservation.nodes}
    taken = {name for recovery in snapshot.recoveries for name in (*recovery.plan.seats, *recovery.plan.failed_nodes)}
    idle = [
        name
        for name, node in snapshot.nodes.items()
        if _fit(node)
        and node.slurm is not None
        and node.slurm.base_state == "IDLE"
        and not node.slurm.flags & {"COMPLETING", "RESERVED", "PLANNED"}
        and (not policy.partition or policy.partition in node.slurm.partitions)
        and name not in elsewhere | taken
    ]
    joining = sorted(idle, key=natural)[-missing:]
    return tuple(sorted({*held_nodes, *joining}, key=natural)) if joining else None


def _fit(node: NodeView) -> bool:
    return (
        node.state is NodeState.IN_SERVICE
        and node.heard_at is not None
        and node.slurm is not None
        and node.slurm.usable
    )
