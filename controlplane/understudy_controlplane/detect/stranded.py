"""Managed gangs that still run on a node that is out of service.

This happens when there was no spare at that moment, when a job slipped onto the node before the drain, or when its
recovery failed half-way: whatever the reason, the gang is to be moved as soon as it can be. On a node that was drained
for later it stays, unless it has to leave another of its nodes: then it leaves this one as well. So it does on a node
that an operator holds, unless that node itself fails, and on one that answers again, or is slow no longer, while the
gang trains on.

A job with --no-kill whose batch host goes down is not ended by Slurm: it loses the node, Slurm shows it as running on
the others, although none of its processes runs any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.administration import HEARD_LATELY_SECONDS
from understudy_controlplane.detect.slow_ranks import keeps_up
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import ACCUSING, Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import HELD_BY_OPERATOR, DrainKind, NodeState
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

SLOW = "straggler.self_time"

OWN_PACE = frozenset({SLOW, NOT_PRICED})
"""Rules of ranks that compute longer than their peers."""

INFERRED = frozenset({"silence.node_dead", SLOW})
"""Rules that infer a fault from what does not happen, or takes long. A gang that trains on does not refute what the
hardware itself shows.
"""


def found_slow(findings: Iterable[Finding]) -> set[str]:
    """Nodes whose ranks are slow themselves. One that was quarantined as slow is only suspected again: what a move from
    there would cost is not looked at any more. Slow collectives, transfers or data say nothing of the ranks' pace.
    """
    return {one.node for one in findings if one.signal is Signal.STRAGGLER_SUSPECTED and one.rule in OWN_PACE}


def still_accused(findings: Sequence[Finding]) -> set[str]:
    """Nodes against which something is found in this round that a gang which trains on does not refute."""
    return {one.node for one in findings if one.signal in ACCUSING} | found_slow(findings)


PACE_AGAIN_SECONDS = 300.0
"""Seconds after a start of the control plane in which no gang leaves a node for an earlier slowness, unless it is found
again. Most gangs have finished a window of steps by then, and a slow one loses a part of this time only.
"""


def trains_on(snapshot: Snapshot, name: str, job: Job, since: float, accused: Set[str], policy: Straggler) -> bool:
    """True if the gang refutes what took its node out of service at `since`: the node answers, nothing is found against
    it any more, and steps have ended that need its ranks, at their peers' pace if the node was slow.
    """
    node, table = snapshot.nodes.get(name), snapshot.progress.tables.get(job.key)
    incident = snapshot.incidents.get(Subject.of_node(name))
    if node is None or node.slurm is None or table is None or incident is None or name in accused:
        return False
    answers = node.heard_at is not None and node.heard_at > since and node.slurmd_silent_since is None
    answers &= snapshot.now - (node.heard_at or 0.0) <= HEARD_LATELY_SECONDS and not node.slurm.down
    works = name in table.nodes and table.advanced_at > since
    works &= SLOW not in incident.accused_by or keeps_up(table, name, policy)
    return answers and INFERRED.issuperset(incident.accused_by) and works


def awaits_pace(snapshot: Snapshot, name: str, job: Job, accused: Set[str]) -> bool:
    """True if an earlier process found the node slow, and this one does not know yet if it still is."""
    incident = snapshot.incidents.get(Subject.of_node(name))
    if snapshot.now - snapshot.started_at > PACE_AGAIN_SECONDS or not job.running or incident is None:
        return False
    slow_alone = SLOW in incident.accused_by and INFERRED.issuperset(incident.accused_by)
    return slow_alone and incident.opened_at < snapshot.started_at and accused.isdisjoint({name, *job.slurm.nodes})


def stranded(
    snapshot: Snapshot, accused: Set[str], policy: Straggler, slow: Set[str] = frozenset()
) -> Iterator[Finding]:
    """`accused` are nodes that no gang can stay on, by what else was found just now; `slow` are found slow still."""
    drained = {name for one in snapshot.recoveries if one.drains_alone for name in one.plan.nodes}
    for node in snapshot.set_apart:
        if node.name in drained:
            continue  # first it leaves service
        held = node.state in HELD_BY_OPERATOR
        if node.state is not NodeState.QUARANTINED and not (held and node.name in accused):
            continue
        may_stay = node.record.drain_kind is DrainKind.AT_JOB_END
        for job in [*snapshot.job_on(node.name), *snapshot.headless.get(node.name, ())]:
            stays = (
                may_stay
                or trains_on(snapshot, node.name, job, node.record.since, accused | slow, policy)
                or awaits_pace(snapshot, node.name, job, accused | slow)
            )
            if stays and not accused & set(job.slurm.nodes):
                continue
            gang = snapshot.progress.gangs.get(job.key)
            if gang is not None and node.name not in gang.seats:
                continue  # its launcher does not use the node
            done = job.key in snapshot.progress.ended_well and job.key not in snapshot.progress.past_its_gang
            if job.managed and not done and snapshot.recovery_of(job.key) is None:
                yield Finding(
                    Signal.GANG_STRANDED,
                    "stranded.gang",
                    node.name,
                    snapshot.now,
                    f"job {job.key.job_id} still runs on a node that is {node.state.value}",
                    Evidence({"job": job.key.job_id, "restart_count": job.slurm.restart_count}),
                    job=job.key,
                    dead=node.is_mute(snapshot.now),
                )
