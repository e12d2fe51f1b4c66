"""Chooses nodes whose jobs Slurm would preempt for the gang, by its own rules, if no spare is free. Pure.

Slurm itself preempts them, when the gang waits in a reservation that contains such a node. What it would do is foreseen
here, so that no gang gives its node up in vain; in doubt nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.foreign_reservations import in_the_way_of, kept_nodes
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import AT_FAULT
from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PreemptibleNode:
    name: str
    jobs: tuple[Job, ...]  # all that are on it


@dataclass(frozen=True, slots=True)
class Preemptible:
    nodes: tuple[PreemptibleNode, ...]  # in the order in which Slurm preempts
    why_no_more: str  # of one node that fits, why its job stays

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(job for node in self.nodes for job in node.jobs))


NOTHING_PREEMPTED = Preemptible((), "")


def preemptible(
    snapshot: Snapshot, config: Config, job: Job, failed: str, taken: Collection[str], moving: Collection[Job]
) -> Preemptible:
    """Nodes that could take the place of `failed`. `taken`: nodes that this round has promised or condemned; `moving`:
    other gangs that it moves.
    """
    rules = snapshot.slurm.preemption
    if rules is None:
        return Preemptible((), "Slurm's rules of preemption are not read yet")
    if "," in job.slurm.partition:
        return Preemptible((), f"the job asked for several partitions ({job.slurm.partition})")
    found: list[PreemptibleNode] = []
    why = ""
    for name in _fitting(snapshot, config, job, failed, taken):
        holders = tuple(snapshot.holders_of(name))
        objections = (_why_not(snapshot, rules, job, one, moving) for one in holders)
        objection = next(filter(None, objections), "")
        why = why or (f"{name}: {objection}" if objection else "")
        if not objection:
            found.append(PreemptibleNode(name, holders))
    found.sort(key=lambda one: (max(rules.order(each.slurm) for each in one.jobs), spares.natural(one.name)))
    return Preemptible(tuple(found), why or ("" if rules.kind else rules.unknown))


def _fitting(snapshot: Snapshot, config: Config, job: Job, failed: str, taken: Collection[str]) -> Iterator[str]:
    """Healthy nodes on which only other jobs keep the gang off."""
    reserved = kept_nodes(snapshot.slurm.reservations.values(), snapshot.slurm_now) | in_the_way_of(
        snapshot, job, config
    )
    promised = {name for one in snapshot.recoveries for name in one.plan.claimed}
    like = spares.known_node(snapshot, job, failed)
    for name, node in snapshot.nodes.items():
        away = name in reserved or name in promised or name in taken or name in snapshot.operator.requests
        if away or name in job.slurm.nodes or not snapshot.holders_of(name) or node.slurm is None:
            continue
        settled = not node.slurm.flags & {"COMPLETING", "RESERVED", "PLANNED"}
        if settled and like is not None and spares.is_fit(node, snapshot, config) and spares.suits(node, job, like):
            yield name


def _why_not(snapshot: Snapshot, rules: PreemptionRules, job: Job, other: Job, moving: Collection[Job]) -> str:
    if other.managed and (
        other in moving
        or snapshot.recovery_of(other.key) is not None
        or other.key in snapshot.operator.paused_jobs
        or any(snapshot.nodes[name].state in AT_FAULT for name in other.slurm.nodes if name in snapshot.nodes)
    ):
        return f"job {other.key.job_id} is moved itself, or paused"
    return rules.why_not(job.slurm, other.slurm, snapshot.slurm_now)
