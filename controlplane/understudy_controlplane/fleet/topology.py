"""Domains of failure and of traffic: racks, cooling, power, switches, NVLink blocks. Pure.

A node belongs to several domains: one leaf switch for each of its ports (its rails), one rack, one pod, and so on. A
domain may lie within another one, and need not: a power feed may cross racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from understudy_controlplane.fleet.distance import Distances
from understudy_controlplane.fleet.slurm import TopologyUnit, UnitKind
from understudy_controlplane.fleet.slurm_blocks import SlurmBlocks

NAMES_SHOWN_MAX = 8


class DomainKind(StrEnum):
    """The first word of a domain's name, as in "rack r1"."""

    NVLINK_BLOCK = "nvlink_block"  # nodes whose GPUs share one NVLink fabric, as in an NVL72 rack
    SWITCH = "switch"  # a leaf switch: ports of nodes are connected to it
    RAIL = "rail"  # the leaf switches of the same port of all nodes
    RACK = "rack"
    POD = "pod"  # leaf switches below common switches, and not the whole fleet
    SPINE = "spine"  # a switch above all leaf switches
    ROW = "row"
    CDU = "cdu"  # a coolant distribution unit
    POWER_FEED = "power_feed"


ONE_OF_EACH = (DomainKind.NVLINK_BLOCK, DomainKind.RACK, DomainKind.ROW, DomainKind.CDU)
"""A node is in one of these at most."""

REDUNDANT = frozenset({DomainKind.RAIL, DomainKind.SPINE})
"""A node whose rail or spine fails has others: they are no domains that the guards count."""


class Source(StrEnum):
    """Source of a domain. If two of them name the same domain, the later one counts."""

    SLURM = "slurm"
    INFINIBAND = "infiniband"
    SETTINGS = "guards.domains"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Domain:
    kind: DomainKind
    name: str
    nodes: tuple[str, ...]
    source: Source = Source.SLURM
    switches: tuple[str, ...] = ()  # of a rail: its leaf switches

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Topology:
    domains: tuple[Domain, ...] = ()
    conflicts: tuple[str, ...] = ()  # domains of which two sources name different nodes
    unread: tuple[str, ...] = ()  # sources that could not be read now, and why
    slurm_blocks: SlurmBlocks | None = None  # to which Slurm keeps each job; None: it keeps to none, or it is not known

    @cached_property
    def by_label(self) -> Mapping[str, Domain]:
        return {one.label: one for one in self.domains}

    @cached_property
    def of_node(self) -> Mapping[str, tuple[Domain, ...]]:
        found: dict[str, list[Domain]] = {}
        for domain in self.domains:
            for name in domain.nodes:
                found.setdefault(name, []).append(domain)
        return {name: tuple(domains) for name, domains in found.items()}

    @cached_property
    def distances(self) -> Distances:
        return Distances(self)

    @cached_property
    def failing_together(self) -> dict[str, tuple[str, ...]]:
        """Domain → its nodes, of those whose failure takes their nodes."""
        return {one.label: one.nodes for one in self.domains if one.kind not in REDUNDANT}

    def failing_with(self, node: str) -> list[str]:
        """Domains of the node whose failure takes it."""
        return [one.label for one in self.of_node.get(node, ()) if one.kind not in REDUNDANT]

    @cached_property
    def only_of_kind(self) -> Mapping[DomainKind, Mapping[str, str]]:
        """Kind → node → the name of its domain of that kind, of nodes that are in one and no more."""
        found: dict[DomainKind, dict[str, str]] = {}
        for node, domains in self.of_node.items():
            for kind, count in Counter(one.kind for one in domains).items():
                if count == 1:
                    found.setdefault(kind, {})[node] = next(one.name for one in domains if one.kind is kind)
        return found

    def names_of(self, node: str, kind: DomainKind) -> list[str]:
        """Names of the domains of that kind that the node is in."""
        return [one.name for one in self.of_node.get(node, ()) if one.kind is kind]


NO_TOPOLOGY = Topology()


def merged(domains: Iterable[Domain], unread: Iterable[str] = (), slurm_blocks: SlurmBlocks | None = None) -> Topology:
    """One topology of what all sources name. Of a domain that several name, the last source counts."""
    found: dict[str, Domain] = {}
    conflicts: list[str] = []
    for domain in sorted(domains, key=lambda one: list(Source).index(one.source)):
        before = found.get(domain.label)
        if before is not None and set(before.nodes) != set(domain.nodes):
            conflicts.append(_conflict(before, domain))
        found[domain.label] = domain
    kinds = list(DomainKind)
    ordered = sorted(found.values(), key=lambda one: (kinds.index(one.kind), one.name))
    return Topology(tuple(_with_nodes_of_switches(ordered)), tuple(conflicts), tuple(unread), slurm_blocks)


def _with_nodes_of_switches(domains: Sequence[Domain]) -> Iterator[Domain]:
    leaves = {one.name: one.nodes for one in domains if one.kind is DomainKind.SWITCH}
    for one in domains:
        below = (node for switch in one.switches for node in leaves.get(switch, ()))
        yield replace(one, nodes=tuple(dict.fromkeys((*one.nodes, *below)))) if one.switches else one


def _conflict(before: Domain, after: Domain) -> str:
    only = {
        before.source: set(before.nodes) - set(after.nodes),
        after.source: set(after.nodes) - set(before.nodes),
    }
    words = " and ".join(f"{shown(nodes)} ({source} only)" for source, nodes in only.items() if nodes)
    return f"{after.label}: its nodes differ between {before.source} and {after.source}: {words}; {after.source} counts"


def slurm_domains(units: Sequence[TopologyUnit]) -> list[Domain]:
    """Level 0 are leaf switches. A switch above them that joins all nodes is a spine, another one a pod; the same holds
    for the smallest blocks that Slurm aggregates from blocks.
    """
    everything = {name for unit in units if unit.kind is UnitKind.SWITCH for name in unit.nodes}
    aggregated = min((len(unit.nodes) for unit in units if unit.kind is UnitKind.AGGREGATED), default=0)
    found: list[Domain] = []
    for unit in units:
        if unit.kind is UnitKind.BLOCK:
            found.append(Domain(DomainKind.NVLINK_BLOCK, unit.name, unit.nodes))
        elif unit.kind is UnitKind.AGGREGATED:
            if len(unit.nodes) == aggregated:
                found.append(Domain(DomainKind.POD, unit.name, unit.nodes))
        elif unit.level == 0:
            found.append(Domain(DomainKind.SWITCH, unit.name, unit.nodes))
        else:
            kind = DomainKind.SPINE if everything <= set(unit.nodes) else DomainKind.POD
            found.append(Domain(kind, unit.name, unit.nodes))
    return found


def settings_domains(named: Mapping[str, Sequence[str]]) -> list[Domain]:
    """Those of `guards.domains` whose name begins with a kind. Others are domains for the guards alone."""
    found: list[Domain] = []
    for label, nodes in named.items():
        kind, _, name = label.partition(" ")
        if kind in set(DomainKind) and name:
            found.append(Domain(DomainKind(kind), name, tuple(nodes), Source.SETTINGS))
    return found


def problems(topology: Topology, nodes: Collection[str]) -> list[str]:
    """What is inconsistent or missing, a line each. `nodes`: those that Slurm has."""
    return [
        *topology.unread,
        *topology.conflicts,
        *_unknown_nodes(topology, nodes),
        *_in_two(topology),
        *_in_none(topology, nodes),
        *_other_number_of_switches(topology, nodes),
        *_two_of_a_rail(topology),
        *_racks_across_rows(topology),
    ]


def _unknown_nodes(topology: Topology, nodes: Collection[str]) -> Iterator[str]:
    for domain in topology.domains:
        unknown = [name for name in domain.nodes if name not in nodes]
        if unknown:
            yield f"{domain.label} ({domain.source}): Slurm has no node {shown(unknown)}"


def _in_two(topology: Topology) -> Iterator[str]:
    for name, domains in topology.of_node.items():
        for kind in ONE_OF_EACH:
            own = [one.label for one in domains if one.kind is kind]
            if len(own) > 1:
                yield f"{name} is in {' and '.join(own)}: a node is in one {kind} at most"


def _in_none(topology: Topology, nodes: Collection[str]) -> Iterator[str]:
    """A kind that no node is in is not described at all; that is no mistake."""
    for kind in DomainKind:
        members = {name for one in topology.domains if one.kind is kind for name in one.nodes}
        outside = [name for name in nodes if name not in members]
        if members and outside:
            yield f"in no {kind}, although other nodes are in one: {shown(outside)}"


def _other_number_of_switches(topology: Topology, nodes: Collection[str]) -> Iterator[str]:
    counts = {name: len(found) for name in nodes if (found := topology.names_of(name, DomainKind.SWITCH))}
    if not counts:
        return
    usual = Counter(counts.values()).most_common(1)[0][0]
    for count in sorted(set(counts.values()) - {usual}):
        odd = [name for name, own in counts.items() if own == count]
        yield f"on {count} leaf switches, where most nodes are on {usual}: {shown(odd)}"


def _two_of_a_rail(topology: Topology) -> Iterator[str]:
    for rail in topology.domains:
        if rail.kind is DomainKind.RAIL:
            for name in rail.nodes:
                own = [leaf for leaf in topology.names_of(name, DomainKind.SWITCH) if leaf in rail.switches]
                if len(own) > 1:
                    yield f"{name} is on leaf switches {', '.join(own)}, which are all of {rail.label}"


def _racks_across_rows(topology: Topology) -> Iterator[str]:
    for rack in topology.domains:
        if rack.kind is DomainKind.RACK:
            rows = sorted({row for name in rack.nodes for row in topology.names_of(name, DomainKind.ROW)})
            if len(rows) > 1:
                yield f"{rack.label} has nodes in several rows: {', '.join(rows)}"


def shown(names: Collection[str]) -> str:
    """Names as subject or object of a sentence: "n1, n2 and 3 more"."""
    first = [*names][:NAMES_SHOWN_MAX]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"{', '.join(first)}{more}"
