"""Which nodes are spares, and which spare is taken."""

from __future__ import annotations

import re
from collections.abc import Collection

from controlplane.config import Config, Spares
from controlplane.decide.guards import still_gathering
from controlplane.fleet.job import Job
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.recovery import SEATS_PREFIX
from controlplane.fleet.slurm import SlurmReservation
from controlplane.fleet.snapshot import Snapshot


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key: n9 before n10."""
    return tuple((int(part) if part.isdigit() else -1, part) for part in re.findall(r"\d+|\D+", name))


def foreign_reservations(snapshot: Snapshot, job: Job | None, config: Config) -> list[SlurmReservation]:
    """Those that others made, but for the one that the job itself runs in. Ours are made over them (OVERLAP), so it is
    for us to keep off their nodes.
    """
    own = {config.spares.reservation}
    if job is not None:
        earlier = snapshot.recovery_of(job.key)
        own |= {job.slurm.reservation, earlier.plan.reservation if earlier else ""}
    return [
        one
        for one in snapshot.reservations.values()
        if one.name not in own and not (one.name.startswith(SEATS_PREFIX) and "IGNORE_JOBS" in one.flags)
    ]


def is_in_the_way(reservation: SlurmReservation, job: Job, now: float) -> bool:
    """It holds its nodes now, or will before the job's time is up."""
    minutes = job.slurm.time_limit_minutes
    return minutes is None or reservation.start_at < now + minutes * 60


def free_spares(snapshot: Snapshot, config: Config) -> list[str]:
    """Spares fit to take a gang's seat now, best first. What somebody else has reserved, now or later, is theirs."""
    taken = {spare for recovery in snapshot.recoveries for spare in recovery.plan.spares}
    taken |= {node for one in foreign_reservations(snapshot, None, config) for node in one.nodes}
    fit = [
        name
        for name, node in snapshot.nodes.items()
        if node.is_spare and name not in taken and _fit(node) and not snapshot.holders_of(name)
    ]
    return sorted(fit, key=natural)


def suits(spare: NodeView, job: Job, failed: NodeView) -> bool:
    """The job could start there: the partition, devices and features of the node it leaves, and not excluded by its
    user.
    """
    if spare.slurm is None or failed.slurm is None:
        return False
    return (
        bool(set(spare.slurm.partitions) & set(job.slurm.partition.split(",")))
        and spare.slurm.gres == failed.slurm.gres
        and (not job.slurm.features or failed.slurm.features <= spare.slurm.features)
        and spare.name not in job.slurm.excluded_nodes
    )


def joining_pool(snapshot: Snapshot, bad: Collection[str], policy: Spares) -> tuple[str, ...]:
    """Nodes that should join the spare pool now; `bad` nodes are condemned just now.

    A spare that is merely silent or suspect counts as held: it comes back by itself, and the pool would only grow.

    Only idle nodes join, last by name first, so that the pool stays together.
    """
    held = sum(
        node.is_spare
        and node.state not in (NodeState.QUARANTINED, NodeState.FOREIGN_DRAIN)
        and (node.slurm is not None and node.slurm.usable)
        for node in snapshot.nodes.values()
    )
    missing = policy.count - held
    if missing <= 0 or still_gathering(snapshot):
        return ()
    elsewhere = {name for reservation in snapshot.reservations.values() for name in reservation.nodes}
    idle = [
        name
        for name, node in snapshot.nodes.items()
        if _fit(node)
        and node.slurm is not None
        and node.slurm.base_state == "IDLE"
        and not node.slurm.flags & {"COMPLETING", "RESERVED", "PLANNED"}
        and (not policy.partition or policy.partition in node.slurm.partitions)
        and name not in elsewhere
        and name not in bad
    ]
    return tuple(sorted(idle, key=natural)[-missing:])


def _fit(node: NodeView) -> bool:
    return (
        node.state is NodeState.IN_SERVICE
        and node.heard_at is not None
        and node.slurm is not None
        and node.slurm.usable
    )
