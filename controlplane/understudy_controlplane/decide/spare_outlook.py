"""What-if: which spare a gang would get if it lost a node now, and why it would not get the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.gang_moves import gang_moves, move_key
from understudy_controlplane.decide.spare_turns import turn
from understudy_controlplane.decide.whole_blocks import Leaving, no_room_at, rule_of, startable
from understudy_controlplane.detect.gpu_set import lacks_gpus
from understudy_controlplane.detect.processes import in_words, outside_of_jobs
from understudy_controlplane.detect.site_signals import is_blocked
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node of the pool, or an idle one that a gang may get."""

    node: str
    is_spare: bool
    fits: bool
    words: str  # why not; empty: it fits


@dataclass(frozen=True, slots=True)
class SpareOutlook:
    lost: str
    words: str  # what would become of the gang
    moves: bool
    taken: tuple[str, ...]
    before: tuple[int, ...]  # jobs that wait for a spare now and would come before it
    candidates: tuple[Candidate, ...]


def outlook(snapshot: Snapshot, job: Job, lost: str, config: Config) -> SpareOutlook:
    """`lost` has a seat of the gang."""
    finding = Finding(Signal.HARDWARE_FAULT, "what.if", lost, snapshot.now, f"{lost} would fail")
    current = Round(snapshot, config).with_condemned(frozenset({lost})).with_idle()
    move = gang_moves(current, [finding]).get(move_key(finding))
    plan = move.plan if move is not None else None
    seats = plan.seats if isinstance(plan, PoolSwapPlan) else ()
    fitting = set(current.fitting(job, lost))
    reserved = set(current.reserved_from(job, lost))
    holders = ", ".join(spares.kept_for_others(job, config.spares))
    pool = [name for name in sorted(snapshot.nodes, key=spares.natural) if snapshot.nodes[name].is_spare]
    apart = _apart(current, job, lost, fitting)
    candidates = tuple(
        Candidate(name, snapshot.nodes[name].is_spare, False, apart[name])
        if name in apart
        else Candidate(name, True, False, f"it is reserved for {holders}")
        if name in reserved
        else _candidate(snapshot, name, job, lost, config, fits=name in fitting)
        for name in dict.fromkeys([*pool, *current.free, *current.idle])
        if name != lost
    )
    return SpareOutlook(
        lost,
        move.words if move is not None else f"job {job.key.job_id} has no seat on {lost}",
        plan is not None,
        tuple(name for name in seats if name not in job.slurm.nodes),
        tuple(_before(snapshot, job, config)),
        candidates,
    )


def _apart(current: Round, job: Job, lost: str, fitting: Collection[str]) -> dict[str, str]:
    """Nodes that would fit, and are in no block in which the gang could have them."""
    snapshot = current.snapshot
    leaving = Leaving(
        job, job.slurm.nodes, [lost], [name for name in (*current.free, *current.idle) if name in fitting]
    )
    startable_on = set(startable(snapshot, leaving))
    found = {name: "Slurm starts it in no more blocks than it needs" for name in fitting if name not in startable_on}
    rule = rule_of(snapshot, job, job.slurm.nodes)
    if rule is not None:
        found |= dict.fromkeys(no_room_at(snapshot, rule, leaving), rule.why)
    return found


def _before(snapshot: Snapshot, job: Job, config: Config) -> Iterator[int]:
    """Gangs that still have a seat on a node that is out of service, and whose turn is first."""
    for other in snapshot.jobs.values():
        waits = any(one.state is NodeState.QUARANTINED for one in snapshot.views_of(other))
        first = turn(snapshot, config, other) < turn(snapshot, config, job)
        if other.managed and other.running and waits and first:
            yield other.key.job_id


def _candidate(snapshot: Snapshot, name: str, job: Job, lost: str, config: Config, *, fits: bool) -> Candidate:
    node = snapshot.nodes[name]
    if fits:
        return Candidate(name, node.is_spare, True, "")
    why = [*_why_unfit(snapshot, node, config)]
    if unsuitable := spares.why_unsuitable(node, job, snapshot.nodes[lost]):
        why.append(unsuitable)
    if not spares.is_open_to(snapshot, node, job):
        why.append("another job has its block or leaf switch to itself")
    return Candidate(name, node.is_spare, False, why[0] if why else "it is reserved by another user")


def _why_unfit(snapshot: Snapshot, node: NodeView, config: Config) -> Iterator[str]:
    """Reasons against any gang: what `spares.free_spares` asks, in words."""
    if node.state not in (NodeState.IN_SERVICE, NodeState.PROBATION):
        yield f"it is {node.state.value}"
    if node.heard_at is None or snapshot.now - node.heard_at > spares.HEARD_WITHIN_SECONDS:
        yield "its agent does not report"
    if node.service is not Service.USABLE:
        yield "Slurm cannot use it now"
    if lacks_gpus(node):
        yield "NVML can read fewer GPUs than it has"
    yield from (in_words(snapshot, node, one) for one in outside_of_jobs(snapshot, node))
    if is_blocked(snapshot, node.name, config.signals):
        yield f"{snapshot.threats_to[node.name][0].words}: no spare is taken from there"
    if node.has_port_down or node.name in snapshot.without_fabric:
        yield "a fabric port of it is down" if node.has_port_down else "the NVLink fabric of its block has failed"
    if node.name in snapshot.under_maintenance:
        yield "it is under maintenance"
    if snapshot.operator.spare_choices.get(node.name) is False:
        yield "an operator wants it out of the pool"
    holders = snapshot.holders_of(node.name)
    if holders:
        yield f"job {holders[0].key.job_id} is on it"
    for recovery in snapshot.recoveries:
        if node.name in recovery.plan.claimed:
            yield f"recovery {recovery.id} has taken it for another gang"
