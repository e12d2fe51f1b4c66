"""Versions of driver, kernel, BIOS and firmware that differ from those that the site states, or from those of nearly
all nodes with the same hardware.

Recorded, and no more: a node that an update has left out works. It helps an administrator to finish the update, and to
understand the next fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from understudy_controlplane.detect.common_cause import bears_witness
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gres import alike
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

NODES_MIN = 8
SHARE_MIN = 0.9
"""Share of the nodes with the same hardware: while an update is under way, no version has that many."""


EVERY_NODE = "*"

Baseline = Mapping[str, Mapping[str, str]]
"""Gres → what → version."""


def drift(snapshot: Snapshot, baseline: Baseline) -> Iterator[Finding]:
    by_gres: defaultdict[str, list[NodeView]] = defaultdict(list)
    for node in snapshot.nodes.values():
        if node.slurm is not None and bears_witness(node):
            by_gres[node.slurm.gres].append(node)
    of_gres = {alike(text): versions for text, versions in baseline.items()}
    for gres, nodes in by_gres.items():
        stated = {**baseline.get(EVERY_NODE, {}), **of_gres.get(gres, {})}
        if stated:
            yield from _of_baseline(nodes, stated)
        if len(nodes) >= NODES_MIN and len({*map(_reported, nodes)}) > 1:
            yield from _of_equals(nodes, stated)


def _of_baseline(nodes: list[NodeView], stated: Mapping[str, str]) -> Iterator[Finding]:
    for node in nodes:
        for what, version in versions_of(node):
            usual = stated.get(what, version)
            if version != usual:
                yield _finding(node, what, version, usual, "the baseline of the site has")


def _of_equals(nodes: list[NodeView], stated: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about nodes with the same GPUs in Slurm."""
    known: dict[tuple[object, ...], tuple[tuple[str, str], ...]] = {}
    own = {node.name: known.get(key := _reported(node)) or known.setdefault(key, versions_of(node)) for node in nodes}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for together, count in Counter(own.values()).items():
        for what, version in together:
            counts[what][version] += count
    for what, found in counts.items():
        usual, count = found.most_common(1)[0]
        total = sum(found.values())
        if what in stated or len(found) == 1 or total < NODES_MIN or count < SHARE_MIN * total:
            continue
        for node in nodes:
            version = dict(own[node.name]).get(what, usual)
            if version != usual:
                yield _finding(node, what, version, usual, f"{count} of {total} nodes with the same GPUs have")


def _reported(node: NodeView) -> tuple[object, ...]:
    """The same for nodes that report the same: of a fleet nearly all do, and comparing each version takes longer."""
    host = tuple(node.host.versions.items()) if node.host is not None else ()
    return node.driver_version, tuple([gpu.vbios for gpu in node.gpus]), host


def versions_of(node: NodeView) -> tuple[tuple[str, str], ...]:
    """What is known of the node: what, and its version."""
    driver = (("driver", node.driver_version),) if node.driver_version else ()
    vbios = sorted({gpu.vbios for gpu in node.gpus if gpu.vbios})
    host = node.host.versions.items() if node.host is not None else ()
    return (*driver, *((("VBIOS", ", ".join(vbios)),) if vbios else ()), *host)


def _finding(node: NodeView, what: str, version: str, usual: str, who: str) -> Finding:
    return Finding(
        Signal.RECORDED,
        f"drift.{what.split(maxsplit=1)[0].lower()}",
        node.name,
        node.heard_at or 0.0,
        f"its {what} is {version}, where {who} {usual}",
        Evidence({"what": what, "version": version, "usual": usual}),
    )
