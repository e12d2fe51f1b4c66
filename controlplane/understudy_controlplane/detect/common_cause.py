"""Nodes that began to fail alike at about the same time have one cause, and none of them is to blame for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

from understudy_controlplane.config import Hardware
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import ClockDetail, Finding, Signal
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView
from understudy_controlplane.fleet.slurm import Service
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind

TOGETHER_SECONDS = 120.0
"""Nodes that began to fail within this of each other began together."""

COMMON_MIN = 2

WHOLE_FLEET = "fleet"
"""The domain of nodes that no smaller domain joins."""

NODES_SHOWN_MAX = 64


def bears_witness(node: NodeView) -> bool:
    """True if what a node shows counts when others fail like it: in service, and heard.

    A node that waits for its repair is no evidence about others, and the last report of a silent one is too old.
    """
    return (
        node.state not in OUT_OF_SERVICE
        and node.state not in (NodeState.FOREIGN_DRAIN, NodeState.UNKNOWN)
        and node.heard_at is not None
        and node.service is not Service.AWAY
    )


def nodes_alike(failures: Sequence[tuple[NodeView, float, bool]]) -> list[int]:
    """Number of nodes, for each failure, that began within TOGETHER_SECONDS of it, its own included. `failures`: node,
    since when, and whether it bears witness.

    A node counts once, however many of its parts fail. A switch may take thousands of ports, so the window slides.
    """
    witnesses = sorted((at, node.name) for node, at, is_witness in failures if is_witness)
    counts = [1] * len(failures)
    inside: Counter[str] = Counter()
    first = last = 0
    for i in sorted(range(len(failures)), key=lambda i: failures[i][1]):
        node, at, _ = failures[i]
        while last < len(witnesses) and witnesses[last][0] <= at + TOGETHER_SECONDS:
            inside[witnesses[last][1]] += 1
            last += 1
        while first < last and witnesses[first][0] < at - TOGETHER_SECONDS:
            name = witnesses[first][1]
            inside[name] -= 1
            if not inside[name]:
                del inside[name]
            first += 1
        counts[i] = len(inside) + (node.name not in inside)
    return counts


def shared_signs_joined(snapshot: Snapshot, found: Sequence[Finding], policy: Hardware) -> list[Finding]:
    """A sign that many nodes show makes no node suspect: it is a property of the site, of an update, or of the control
    plane's clock, and a fleet of suspects has no spare left. It is a fault of their domain. Nodes that could not be
    judged may show it as well.
    """
    nodes: dict[str, dict[str, float]] = {}
    words: dict[str, str] = {}  # of the first of them
    for finding in found:
        alike_counts = finding.signal is Signal.HEALTH_SUSPECTED or isinstance(finding.detail, ClockDetail)
        if alike_counts and bears_witness(snapshot.nodes[finding.node]):
            nodes.setdefault(finding.rule, {}).setdefault(finding.node, finding.at)
            words.setdefault(finding.rule, f"{finding.node} and others alike: {finding.summary}")
    many = max(policy.together_nodes, policy.together_share * len(snapshot.nodes))
    many = max(COMMON_MIN, many - len(snapshot.round.unjudged))
    alike = {rule: names for rule, names in nodes.items() if len(names) >= many}
    return [
        *(one for one in found if one.rule not in alike),
        *(domain_fault(snapshot, rule, names, words[rule]) for rule, names in alike.items()),
    ]


def domain_faults(snapshot: Snapshot, rule: str, failures: Iterable[tuple[str, float]], what: str) -> Iterator[Finding]:
    """Common causes of nodes that fail alike: one for those that began together. `failures`: node, and since when."""
    group: dict[str, float] = {}
    last = 0.0  # when the newest node of the group began
    for name, at in sorted(failures, key=lambda failure: failure[1]):
        if group and at > last + TOGETHER_SECONDS:
            yield domain_fault(snapshot, rule, group, what)
            group = {}
        if name not in group:
            group[name] = last = at
    if group:
        yield domain_fault(snapshot, rule, group, what)


def domain_fault(snapshot: Snapshot, rule: str, nodes: dict[str, float], what: str) -> Finding:
    """One common cause. `nodes`: since when each fails."""
    domain = domain_of(snapshot, rule, nodes.keys())
    shown = ", ".join(list(nodes)[:8]) + (", …" if len(nodes) > 8 else "")
    return Finding(
        Signal.DOMAIN_FAULT,
        rule,
        "",
        min(nodes.values()),
        f"{len(nodes)} nodes of {domain}: {what} ({shown})",
        Evidence({"nodes": [*list(nodes)[:NODES_SHOWN_MAX]], "nodes_alike": len(nodes)}),
        domain=domain,
        nodes=tuple(nodes),
    )


def domain_of(snapshot: Snapshot, rule: str, nodes: Set[str]) -> str:
    """Domain of an open incident of these nodes, if there is one; otherwise the smallest that contains all of them, if
    they are at least half of it and it is not the whole fleet.
    """
    for subject, incident in snapshot.incidents.items():
        if subject.kind is SubjectKind.DOMAIN and incident.rule == rule and not nodes.isdisjoint(incident.nodes):
            return subject.name
    sizes = {
        name: len(members)
        for name, members in snapshot.domains.items()
        if 2 * len(nodes) >= len(members) and len(members) < len(snapshot.nodes) and nodes <= set(members)
    }
    return min(sizes, key=lambda name: (sizes[name], name), default=WHOLE_FLEET)
