"""What other users have reserved. Slurm lets Understudy's reservations overlap it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from understudy_controlplane.config import Config
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot

JOB_STARTS_SECONDS = 300.0
"""How long a job on a node of Understudy's may take to start."""


def foreign_reservations(snapshot: Snapshot, job: Job | None, config: Config) -> list[SlurmReservation]:
    """Those of other users, except the one that the job itself runs in. Slurm lets Understudy's reservations overlap
    them (OVERLAP), so the control plane itself must keep off their nodes.
    """
    own = {config.spares.reservation}
    if job is not None:
        earlier = snapshot.recovery_of(job.key)
        before = earlier.swap.reservation if earlier and earlier.swap else ""
        own |= {*job.slurm.reservation.split(","), *before.split(",")}
    return [one for one in snapshot.slurm.reservations.values() if is_foreign(one, own)]


def is_foreign(reservation: SlurmReservation, own: Collection[str]) -> bool:
    """`own`: names of reservations besides those that the control plane makes for one gang or node."""
    name = reservation.name
    made = name.startswith((SEATS_PREFIX, NODE_HOLD_PREFIX)) and "IGNORE_JOBS" in reservation.flags
    return name not in own and not made


def is_in_the_way(reservation: SlurmReservation, job: Job, slurm_now: float) -> bool:
    """It holds its nodes now, or will before the job's time is up."""
    minutes = job.slurm.time_limit_minutes
    return minutes is None or reservation.start_at < slurm_now + JOB_STARTS_SECONDS + minutes * 60


def in_the_way_of(snapshot: Snapshot, job: Job, config: Config) -> set[str]:
    """Nodes that others have reserved, and that Slurm keeps this job off."""
    others = foreign_reservations(snapshot, job, config)
    return {name for one in others if is_in_the_way(one, job, snapshot.slurm_now) for name in one.nodes}


def reserved_by_others(snapshot: Snapshot, config: Config) -> set[str]:
    """Nodes that are reserved now or later."""
    return kept_nodes(foreign_reservations(snapshot, None, config), snapshot.slurm_now)


def kept_nodes(reservations: Iterable[SlurmReservation], slurm_now: float) -> set[str]:
    """Those of a maintenance that is ahead left out."""
    return {name for one in reservations if one.keeps_nodes(slurm_now) for name in one.nodes}
