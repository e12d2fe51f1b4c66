"""Silent nodes that are the nodes of one domain: a rack without power, a switch that failed.

Such nodes are one failure. The domain has the time that a swap takes to come back; after that only nodes on which a
managed gang has a seat count as dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import DOMAIN_SILENT
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind

WITHIN_SECONDS = 60.0
"""Nodes of a domain that fail together fall silent within this of the first."""

NODES_MIN = 3
SHARE_MIN = 0.75
"""Share of the domain's watched nodes: fewer have causes of their own."""

NODES_SHOWN_MAX = 64


@dataclass(frozen=True, slots=True)
class SilentDomain:
    label: str
    since: float  # when the first of its nodes fell silent
    nodes: tuple[str, ...]


def silent_domains(snapshot: Snapshot, fallen: Mapping[str, float], watched: Set[str]) -> list[SilentDomain]:
    """`fallen`: since when each silent node is silent; `watched`: all nodes of which silence would count."""
    found = [*_known(snapshot, fallen)]
    known = {name for one in found for name in one.nodes}
    left = {name: at for name, at in fallen.items() if name not in known}
    for together in _clusters(left):
        found += _new(snapshot, together, watched)
    return found


def _known(snapshot: Snapshot, fallen: Mapping[str, float]) -> Iterator[SilentDomain]:
    """Those of open incidents, also while few of their nodes are left: others have been taken out of service."""
    for subject, incident in snapshot.incidents.items():
        if subject.kind is SubjectKind.DOMAIN and incident.rule == DOMAIN_SILENT:
            last = incident.opened_at + WITHIN_SECONDS
            nodes = [name for name in snapshot.domains.get(subject.name, ()) if fallen.get(name, last) < last]
            if nodes:
                yield SilentDomain(subject.name, min(fallen[name] for name in nodes), tuple(nodes))


def _clusters(fallen: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Nodes that fell silent within WITHIN_SECONDS of the first of them."""
    group: dict[str, float] = {}
    for name, at in sorted(fallen.items(), key=lambda one: one[1]):
        if group and at > next(iter(group.values())) + WITHIN_SECONDS:
            yield group
            group = {}
        group[name] = at
    if group:
        yield group


def _new(snapshot: Snapshot, together: Mapping[str, float], watched: Set[str]) -> Iterator[SilentDomain]:
    """The domain with the most of these nodes, then that with the most of the others, while one has enough. Of domains
    with the same nodes, such as a rack and its leaf switch, the first by name.
    """
    if len(together) < NODES_MIN:
        return
    silent: dict[str, set[str]] = {}
    for name in together:
        for label in snapshot.topology.failing_with(name):
            silent.setdefault(label, set()).add(name)
    sizes = {
        label: sum(name in watched for name in snapshot.topology.failing_together[label])
        for label, nodes in silent.items()
        if len(nodes) >= NODES_MIN
    }
    while enough := [
        label
        for label, size in sizes.items()
        if len(silent[label]) >= max(NODES_MIN, SHARE_MIN * size) and size < len(watched)
    ]:
        found = min(enough, key=lambda one: (-len(silent[one]), sizes[one], one))
        first_first = sorted(silent[found], key=lambda name: (together[name], name))
        yield SilentDomain(found, together[first_first[0]], tuple(first_first))
        for name in first_first:
            for label in snapshot.topology.failing_with(name):
                silent[label].discard(name)


def domain_silences(found: list[SilentDomain]) -> Iterator[Finding]:
    for one in found:
        shown = ", ".join(one.nodes[:8]) + (", …" if len(one.nodes) > 8 else "")
        yield Finding(
            Signal.DOMAIN_FAULT,
            DOMAIN_SILENT,
            "",
            one.since,
            f"{len(one.nodes)} nodes of {one.label} fell silent together ({shown})",
            Evidence({"nodes": [*one.nodes[:NODES_SHOWN_MAX]], "nodes_alike": len(one.nodes), "since": one.since}),
            domain=one.label,
            nodes=one.nodes,
        )


def needs_to_leave(snapshot: Snapshot, node: str) -> bool:
    """A managed gang has a seat there."""
    return any(job.managed for job in snapshot.holders_of(node))
