"""Gangs that hang: restarted as long as they make progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set

from understudy_controlplane.config import Config
from understudy_controlplane.decide import allocation_swap, plans
from understudy_controlplane.decide.whole_blocks import Whole
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import AT_FAULT, HELD_BY_PEOPLE
from understudy_controlplane.fleet.recovery import Plan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.ranks import HangQuestion


def questions(snapshot: Snapshot, findings: Iterable[Finding]) -> Iterator[HangQuestion]:
    """Questions for the ranks of each gang that is to be restarted once they have answered."""
    for one in findings:
        job = snapshot.jobs.get(one.job) if one.job is not None and one.signal is Signal.GANG_ASKED else None
        table = snapshot.progress.tables.get(job.key) if job is not None else None
        if job is not None and table is not None:
            of = table.attempt
            yield HangQuestion(job.key.job_id, of.restart_count, of.launch, job.slurm.user_id, _asked(table.nodes))


def _asked(nodes: Sequence[str]) -> tuple[int, ...]:
    """First rank of the first, the last and a node between: whose agents ask NCCL. `nodes`: of each rank."""
    first = {node: rank for rank, node in reversed([*enumerate(nodes)]) if node}
    ranks = sorted(first.values())
    return tuple(dict.fromkeys([ranks[0], ranks[len(ranks) // 2], ranks[-1]])) if ranks else ()


def too_often(snapshot: Snapshot, job: Job, config: Config) -> str:
    """Why it is not restarted once more; empty: it is."""
    table = snapshot.progress.tables.get(job.key)
    count = snapshot.restarts_without_progress(job.key)
    if count < config.jobs.restarts_without_progress_max:
        return ""
    number = table.number if table else None
    where = f"step {number}" if number is not None else "its first step"
    return (
        f"a restart of job {job.key.job_id} began {times(count)} because it hung, without progress beyond {where}: "
        "no node is at fault, or it is not known which; left to its user (scontrol requeue, or scancel)"
    )


def lost_if_requeued(snapshot: Snapshot, seats: Sequence[str]) -> tuple[str, ...]:
    """Those of the seats that are out of service, for a fault or because a person has the node: Slurm starts nothing
    there again.
    """
    states = {name: node.state for name in seats if (node := snapshot.nodes.get(name)) is not None}
    return tuple(name for name, state in states.items() if state in AT_FAULT | HELD_BY_PEOPLE)


def leaving_service(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """Nodes of the running job of which the drain is under way, by a recovery that does not move the job."""
    drained = {name for one in snapshot.recoveries if one.drains_alone for name in one.plan.nodes}
    return tuple(name for name in job.slurm.nodes if name in drained)


def restart_inside(
    snapshot: Snapshot, job: Job, findings: Sequence[Finding], bad: Collection[str], config: Config
) -> tuple[Plan, str]:
    """Restart by its launcher, without the named nodes if its allocation has spares for them."""
    named, gang = _named(findings), snapshot.progress.gangs[job.key]
    places = allocation_swap.placed(snapshot, job, named, config, bad).by_node_left
    plan = plans.allocation_plan(snapshot, job, gang, findings, config, hang=findings[0].summary, places=places)
    return plan, f"the launcher of job {job.key.job_id} restarts it"


def requeue(
    snapshot: Snapshot,
    job: Job,
    findings: Sequence[Finding],
    found: Whole,
    chosen: Sequence[str],
    drained_elsewhere: Set[str],
) -> tuple[Plan, str]:
    """Restart without the named nodes if there are spares for them. They are not failed: a hang alone condemns none.
    Nodes that were to be drained at the job's end are drained by now: the first of the `chosen` nodes replace them.
    The last are for nodes that it has lost since its start.
    """
    number, why = job.key.job_id, findings[0].summary
    gone = lost_if_requeued(snapshot, job.slurm.nodes)
    named = [finding for finding in _named(findings) if finding.node not in gone]
    given_up = found.given_up
    seats = job.slurm.nodes
    plan = plans.swap_plan(
        snapshot,
        job,
        named or findings,
        seats,
        chosen,
        hang=why,
        gone=gone,
        drained_elsewhere=drained_elsewhere,
        given_up=given_up,
    )
    old = (*gone, *(finding.node for finding in named), *given_up)
    old = (*old, *["a node that Slurm has taken out of it"] * (len(chosen) - len(old)))
    words = ", ".join(f"{new} in the place of {before}" for before, new in zip(old, chosen, strict=False))
    whole = f"; {found.placement.whole}" if found.placement.whole else ""
    return plan, f"job {number} is requeued onto its seats{f', {words}' if words else ''}{whole}"


def _named(findings: Sequence[Finding]) -> list[Finding]:
    """Those that name a node which holds the others up."""
    return [finding for finding in findings if finding.signal is Signal.GANG_HUNG]
