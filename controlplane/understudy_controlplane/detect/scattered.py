"""Gangs that Slurm placed otherwise than their jobs ask, or further apart than nodes that are free would allow.

Slurm 25.11.0 to 25.11.2 drops nodes from their blocks that it switches off, 25.05 to 26.05.3 ignores --segment for
nodes whose block was set again to what it was, and --switches gives up after a time. Such a gang runs, and its steps
take longer. The finding names what that costs, and is no reason to end the gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, LaunchDetail, Signal
from understudy_controlplane.fleet.gres import gpu_types
from understudy_controlplane.fleet.job import Job, group_sizes
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import DomainKind, Source, Topology, shown
from understudy_wire.parallelism import parallelism_of

STARTED_WITHIN_SECONDS = 600.0
"""Time after its start in which a gang is held against what is free: later on, these are not what it could have had."""

MARGIN = 0.1
"""Share of all pairs of a gang's nodes that have to be apart without need."""

KINDS = (DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.RACK)
"""Domains by which a gang is judged: the nearest in which each of its nodes has exactly one."""


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("switch") else f"{noun}s"


@dataclass(frozen=True, slots=True)
class Spread:
    kind: DomainKind
    domains: int
    apart: int  # pairs of nodes in different domains
    pairs: int

    @property
    def price(self) -> str:
        what = self.kind.value.replace("_", " ")
        return f"{self.apart} of its {self.pairs} pairs of nodes are in different {_plural(what)}"


def scattered(snapshot: Snapshot) -> Iterator[Finding]:
    for job in snapshot.jobs.values():
        if job.managed and job.running and len(job.slurm.nodes) > 1:
            asked = [*_not_as_asked(snapshot, job)]
            if not asked and not _just_started(snapshot, job):
                continue
            spread = spread_of(snapshot.topology, job.slurm.nodes)
            if asked:
                yield _finding(job, "placement.request", "; ".join(asked), spread, snapshot.now)
            elif spread is not None and (words := _without_need(snapshot, job, spread)):
                yield _finding(job, "placement.spread", words, spread, snapshot.now)


def _just_started(snapshot: Snapshot, job: Job) -> bool:
    started_at = job.slurm.start_at
    return started_at is not None and snapshot.slurm_now - started_at <= STARTED_WITHIN_SECONDS


def _finding(job: Job, rule: str, words: str, spread: Spread | None, now: float) -> Finding:
    evidence = {} if spread is None else {"domains": spread.domains, "apart": spread.apart, "pairs": spread.pairs}
    return Finding(
        Signal.GANG_SCATTERED,
        rule,
        "",
        now,
        words + (f"; {spread.price}" if spread is not None else ""),
        Evidence({"kind": spread.kind.value if spread is not None else "", **evidence}),
        job=job.key,
        nodes=job.slurm.nodes,
        detail=LaunchDetail(restart_count=job.slurm.restart_count, launch=0),
    )


def spread_of(topology: Topology, nodes: Sequence[str]) -> Spread | None:
    """None: no domain of all of its nodes is known."""
    for kind in KINDS:
        domains = topology.only_of_kind.get(kind, {})
        if domains and all(name in domains for name in nodes):
            return _spread(kind, Counter(domains[name] for name in nodes), len(nodes))
    return None


def _spread(kind: DomainKind, held: Mapping[str, int], nodes: int) -> Spread:
    pairs = nodes * (nodes - 1) // 2
    return Spread(kind, len(held), pairs - sum(count * (count - 1) // 2 for count in held.values()), pairs)


def _not_as_asked(snapshot: Snapshot, job: Job) -> Iterator[str]:
    slurm = job.slurm
    gang = snapshot.progress.gangs.get(job.key)
    nodes = slurm.nodes if gang is None else gang.seats
    in_slurm = snapshot.in_slurm
    shown_by_slurm = {name: one for name in nodes if (one := in_slurm.get(name)) is not None}
    if slurm.segment > 1 or "block=" in slurm.comment:
        yield from _segments(snapshot, job, nodes)
    if slurm.switches_max:
        yield from _switches(snapshot.topology, job)
    # A recovery, and a person, may exclude nodes of a job that runs there: that is for its next start.
    if slurm.excluded_nodes and _just_started(snapshot, job) and snapshot.recovery_of(job.key) is None:
        excluded = [name for name in nodes if name in slurm.excluded_nodes]
        if excluded:
            yield f"it excludes {shown(excluded)}, and runs there"
    if slurm.plain_features is not None:
        lacking = [name for name, one in shown_by_slurm.items() if not slurm.plain_features <= one.features]
        if lacking:
            yield f"it asks for {slurm.features}, which Slurm does not show of {shown(lacking)}"
    types = set(slurm.gpu_types)
    other = [name for name, one in shown_by_slurm.items() if not types.issubset(gpu_types(one.gres))] if types else []
    if other:
        yield f"it asks for GPUs of type {' and '.join(slurm.gpu_types)}, which Slurm does not show of {shown(other)}"
    if len({one.gres for one in shown_by_slurm.values()}) > 1:
        kinds = {_gpus(one.gres) for one in shown_by_slurm.values()}
        if len(kinds) > 1:
            yield f"its nodes have different GPUs: {' and '.join(sorted(kinds))}"


def _gpus(gres: str) -> str:
    return ",".join(sorted(one for one in gres.split(",") if one.startswith("gpu"))) or "none"


def _switches(topology: Topology, job: Job) -> Iterator[str]:
    """Not judged where a node is on several leaf switches, one for each rail."""
    own = [_slurms_leaves(topology, name) for name in job.slurm.nodes]
    leaves = {one for of_node in own for one in of_node}
    if all(len(of_node) == 1 for of_node in own) and len(leaves) > job.slurm.switches_max:
        found = counted(len(leaves), "leaf switch", "leaf switches")
        yield f"it asks for --switches={job.slurm.switches_max}, and is on {found}"


def _slurms_leaves(topology: Topology, name: str) -> list[str]:
    """Leaf switches as Slurm counts them."""
    domains = topology.of_node.get(name, ())
    return [one.name for one in domains if one.kind is DomainKind.SWITCH and one.source is Source.SLURM]


def _segments(snapshot: Snapshot, job: Job, seats: Sequence[str]) -> Iterator[str]:
    """Whole groups of nodes in one block each: Slurm's --segment for all of its nodes, and block=N of the job's comment
    for those of its ranks.
    """
    if not any(one.kind is DomainKind.NVLINK_BLOCK for one in snapshot.topology.domains):
        return
    sizes = parallelism_of(group_sizes(job.slurm.comment, "").split())
    segment, block = job.slurm.segment, 1 if sizes is None else sizes.block
    for words, size, nodes in ((f"--segment={segment}", segment, job.slurm.nodes), (f"block={block}", block, seats)):
        if size <= 1 or len(nodes) % size:
            continue
        blocks = {name: snapshot.topology.names_of(name, DomainKind.NVLINK_BLOCK) for name in nodes}
        held = Counter(one[0] for one in blocks.values() if one)
        units, whole = len(nodes) // size, sum(count // size for count in held.values())
        if whole < units:
            outside = [name for name, one in blocks.items() if not one]
            dropped = f"; the topology has {shown(outside)} in no block" if outside else ""
            yield f"it asks for {words}, and {whole} of {units} groups of {size} nodes are in one block{dropped}"


def _without_need(snapshot: Snapshot, job: Job, spread: Spread) -> str:
    """Empty: it is as close together as it can be, or nearly so."""
    first = snapshot.nodes.get(job.slurm.nodes[0])
    if first is None or not spread.apart:
        return ""
    own = frozenset(job.slurm.nodes)
    could = [
        *own,
        *(name for name, node in snapshot.nodes.items() if name not in own and _is_free(snapshot, node, first, job)),
    ]
    best = _best(snapshot.topology, spread.kind, could, len(own), max(1, job.slurm.segment))
    if best is None or best.domains >= spread.domains or spread.apart - best.apart < MARGIN * spread.pairs:
        return ""
    return (
        f"it could be in {counted(best.domains, spread.kind.value.replace('_', ' '))} with nodes that are free now, "
        f"and is in {spread.domains}: {best.apart} pairs would be apart"
    )


def _is_free(snapshot: Snapshot, node: NodeView, like: NodeView, job: Job) -> bool:
    if node.slurm is None or like.slurm is None:
        return False
    idle = node.slurm.base_state == "IDLE" and not node.slurm.flags & {"COMPLETING", "RESERVED", "PLANNED", "BLOCKED"}
    in_service = node.state is NodeState.IN_SERVICE and node.service is Service.USABLE and not node.is_spare
    free = not snapshot.holders_of(node.name)
    return idle and in_service and free and not node.slurm.why_unfit(job.slurm, like.slurm)


def _best(topology: Topology, kind: DomainKind, could: Collection[str], nodes: int, segment: int) -> Spread | None:
    """The largest domains first: no other choice has fewer pairs apart."""
    domains = topology.only_of_kind.get(kind, {})
    room = Counter(domains[name] for name in could if name in domains)
    held: dict[str, int] = {}
    left = nodes
    for domain, count in sorted(room.items(), key=lambda one: (-one[1], one[0])):
        taken = min(left, count // segment * segment)
        if taken:
            held[domain] = taken
            left -= taken
    return None if left else _spread(kind, held, nodes)
