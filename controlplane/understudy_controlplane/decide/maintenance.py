"""What a maintenance does next, as requests like those of an operator: hold a node, move a gang, release a node. Pure.

Requests go through the table, the guards and the journal like any other. A gang on a held node leaves it for spares at
its next checkpoint, one gang at a time; other jobs there run to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.gang_moves import gangs_on
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.maintenance import Maintenance, Next, Stage
from understudy_controlplane.fleet.node import AT_FAULT, NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

OF_PEOPLE = (NodeState.OPERATOR_HOLD, NodeState.RETIRED)
"""A node that an operator holds already stays with them."""

OUT = (Stage.ASKED, Stage.HELD)


def next_of(snapshot: Snapshot, maintenance: Maintenance) -> Next:
    stages = _stages(snapshot, maintenance)
    if snapshot.mode_of(maintenance.unfinished) is Mode.OBSERVE or snapshot.slurm.read_at is None:
        return Next(stages)
    if maintenance.is_ending(snapshot.now):
        return _ending(snapshot, stages)
    if maintenance.paused or snapshot.operator.paused:
        return Next(stages)
    out = [name for name, stage in stages.items() if stage in OUT]
    holds = _in_order(snapshot, maintenance, stages)[: max(maintenance.at_once - len(out), 0)]
    return Next({**stages, **dict.fromkeys(holds, Stage.ASKED)}, holds, _move(snapshot, out))


def _stages(snapshot: Snapshot, maintenance: Maintenance) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for name in maintenance.nodes:
        stage = _stage(snapshot, name, maintenance.stages.get(name))
        if stage is not None:
            found[name] = stage
    return found


def _stage(snapshot: Snapshot, name: str, before: Stage | None) -> Stage | None:
    node = snapshot.nodes.get(name)
    if node is None or before is Stage.DONE:
        return Stage.DONE  # Slurm has no such node any more
    if before is Stage.ASKED:
        if node.state is NodeState.OPERATOR_HOLD:
            return Stage.HELD
        return Stage.ASKED if name in snapshot.operator.requests else None  # the request was given up: it is made again
    if before is Stage.HELD:
        return Stage.HELD if node.state in (NodeState.OPERATOR_HOLD, NodeState.VALIDATING) else Stage.DONE
    return Stage.DONE if node.state in OF_PEOPLE else None


def _ending(snapshot: Snapshot, stages: Mapping[str, Stage]) -> Next:
    held = [name for name, stage in stages.items() if stage is Stage.HELD]
    releases = tuple(
        name
        for name in held
        if snapshot.nodes[name].state is NodeState.OPERATOR_HOLD and name not in snapshot.operator.requests
    )
    return Next(stages, releases=releases, is_over=not any(stage in OUT for stage in stages.values()))


def _in_order(snapshot: Snapshot, maintenance: Maintenance, stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """Nodes that wait: those without a gang first, then gang by gang, so that each moves as few times as possible."""

    def key(name: str) -> tuple[int, tuple[tuple[int, str], ...]]:
        jobs = [job.key.job_id for job in gangs_on(snapshot, {name})]
        return min(jobs, default=0), spares.natural(name)

    waiting = [name for name in maintenance.nodes if name not in stages and not _is_left(snapshot.nodes[name])]
    return tuple(sorted(waiting, key=key))


def _is_left(node: NodeView) -> bool:
    """True if the node is left to its own cycle: a node at fault, which the end of the maintenance must not return; and
    one that is validated, which has its turn after that.
    """
    return node.state in AT_FAULT


def _move(snapshot: Snapshot, out: Sequence[str]) -> tuple[JobKey, tuple[str, ...]] | None:
    """The next gang that leaves nodes which are out of service. One at a time: none while another one is asked for or
    under way.
    """
    if snapshot.operator.moves or any(one.swap is not None and one.swap.stops_gang for one in snapshot.recoveries):
        return None
    held = [name for name in out if snapshot.nodes[name].state is NodeState.OPERATOR_HOLD]
    for job in sorted(gangs_on(snapshot, set(held)), key=lambda one: one.key.job_id):
        if job.running and job.key not in snapshot.operator.paused_jobs:
            return job.key, tuple(name for name in held if name in job.slurm.nodes)
    return None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What happens to one node."""

    node: str
    stage: str  # waiting, asked, held, ready, returning or done
    jobs: tuple[int, ...]
    words: str


def outlook(snapshot: Snapshot, maintenance: Maintenance) -> list[Outlook]:
    stages = _stages(snapshot, maintenance)
    planned = next_of(snapshot, maintenance).holds
    return [_outlook(snapshot, name, stages.get(name), name in planned) for name in maintenance.nodes]


def _outlook(snapshot: Snapshot, name: str, stage: Stage | None, is_next: bool) -> Outlook:
    node = snapshot.nodes.get(name)
    if node is None:
        return Outlook(name, Stage.DONE.value, (), "Slurm does not have it any more")
    jobs = tuple(sorted(job.key.job_id for job in snapshot.holders_of(name)))
    gangs = sorted(job.key.job_id for job in gangs_on(snapshot, {name}))
    others = [job for job in jobs if job not in gangs]
    ends = [f"the gang of job {job} leaves it at its next complete checkpoint" for job in gangs]
    ends += [f"job {job} runs to its end" for job in others]
    if stage is Stage.DONE:
        return Outlook(name, stage.value, jobs, f"it is {node.state.value}")
    if stage is Stage.HELD and node.state is NodeState.VALIDATING:
        return Outlook(name, "returning", jobs, "it is validated")
    if stage is Stage.HELD and not jobs and node.slurm is not None and node.slurm.draining:
        return Outlook(name, "ready", jobs, "no job is on it: work can begin; `understudy node release` ends it")
    if stage is None and node.record.at_fault:
        words = "it does not return with the other nodes"
        if name in snapshot.worked_on:
            words = f"no repair of it begins before the maintenance is over, and {words}"
        return Outlook(name, "waiting", jobs, f"it is {node.state.value}: {words}")
    words = "; ".join(["it is drained", *ends])
    if stage is None and not is_next:
        words = f"waits for its turn; then {words}"
    return Outlook(name, stage.value if stage is not None else "waiting", jobs, words)


def spares_needed(snapshot: Snapshot, maintenance: Maintenance, config: Config) -> str:
    """Text for the plan: whether there are enough spares."""
    gangs = gangs_on(snapshot, set(maintenance.nodes))
    if not gangs:
        return "no managed gang has a seat on these nodes"
    seats = sum(len(set(maintenance.nodes) & set(job.slurm.nodes)) for job in gangs)
    elsewhere = [name for name in spares.free_spares(snapshot, config) if name not in maintenance.nodes]
    names = ", ".join(f"job {job.key.job_id}" for job in sorted(gangs, key=lambda one: one.key.job_id)[:8])
    leave = f"{counted(len(gangs), 'gang leaves', 'gangs leave')} {counted(seats, 'seat')}"
    return (
        f"{leave}, one gang after the other ({names}); "
        f"free spares elsewhere: {len(elsewhere)}. A gang for which there is no spare stays until there is one"
    )
