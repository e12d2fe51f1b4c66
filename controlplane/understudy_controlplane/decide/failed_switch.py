"""A gang that hangs behind a switch whose ports are down: there it can only hang again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from understudy_controlplane.config import Config
from understudy_controlplane.decide.allocation_swap import healthy_spares
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import shown


def seats_behind(snapshot: Snapshot, job: Job, *, inside: bool) -> tuple[str, ...]:
    """Nodes that the gang uses. `inside`: its launcher can restart it, and spares of its allocation do not count."""
    if not snapshot.behind_failed_switch:
        return ()
    seats = snapshot.progress.gangs[job.key].seats if inside else job.slurm.nodes
    return tuple(name for name in seats if name in snapshot.behind_failed_switch)


def waits_for(snapshot: Snapshot, behind: Sequence[str], config: Config) -> str:
    """What may come back within the time that a swap takes; empty: nothing, or its time is over."""
    seconds = config.silence.domain_wait_seconds
    failed = [snapshot.behind_failed_switch[name] for name in behind]
    waits = [one for one in failed if one.opened_at >= snapshot.ago(seconds)]
    return (
        f"the ports of {waits[0].subject.name} went down together: it has {seconds:g} s to come back" if waits else ""
    )


def can_be_left_inside(snapshot: Snapshot, gang: Gang, behind: Sequence[str], bad: Collection[str]) -> bool:
    """The allocation has a healthy spare elsewhere for each of them, and for seats on nodes that are bad."""
    leaving = [name for name in gang.seats if name in behind or name in bad]
    return bool(behind) and len(healthy_spares(snapshot, gang, bad)) >= len(leaving)


def named_too(findings: Sequence[Finding], behind: Sequence[str]) -> list[Finding]:
    """The findings, and one of each of these nodes: the launcher starts the gang without the nodes that are named."""
    named = {one.node for one in findings if one.signal is Signal.GANG_HUNG}
    more = [
        replace(findings[0], signal=Signal.GANG_HUNG, node=name, detail=None) for name in behind if name not in named
    ]
    return [*findings, *more]


def no_room(job: Job, behind: Sequence[str]) -> str:
    return (
        f"no spares for all nodes of job {job.key.job_id} behind a switch that has failed ({shown(behind)}); "
        "it stays until there are, or until their ports are back"
    )
