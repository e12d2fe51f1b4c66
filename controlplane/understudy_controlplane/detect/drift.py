"""Versions of driver, kernel, BIOS and firmware that differ from those that the site states, or from those of nearly
all nodes with the same hardware.

Recorded, and no more: a node that an update has left out works. It helps an administrator to finish the update, and to
understand the next fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from understudy_controlplane.detect.common_cause import bears_witness
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gres import alike
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.node_views import MachineKind, NodeViews, Versions, versions_of
from understudy_controlplane.fleet.snapshot import Snapshot

NODES_MIN = 8
SHARE_MIN = 0.9
"""Share of the nodes with the same hardware: while an update is under way, no version has that many."""


EVERY_NODE = "*"

Baseline = Mapping[str, Mapping[str, str]]
"""Gres → what → version."""


def drift(snapshot: Snapshot, baseline: Baseline) -> Iterator[Finding]:
    by_gres: defaultdict[str, dict[Versions, list[str]]] = defaultdict(dict)
    for kind, names in _machines(snapshot).items():
        by_gres[kind.gres][kind.versions] = names
    of_gres = {alike(text): versions for text, versions in baseline.items()}
    for gres, kinds in by_gres.items():
        stated = {**baseline.get(EVERY_NODE, {}), **of_gres.get(gres, {})}
        found = [*_of_baseline(kinds, stated), *(_of_equals(kinds, stated) if len(kinds) > 1 else ())]
        for names, what, version, usual, who in found:
            for name in names:
                yield _finding(snapshot.nodes[name], what, version, usual, who)


def _machines(snapshot: Snapshot) -> dict[MachineKind, list[str]]:
    """Kind → its nodes that bear witness."""
    found = snapshot.nodes.plain_machines() if isinstance(snapshot.nodes, NodeViews) else {}
    for node in snapshot.notable:
        if node.slurm is not None and bears_witness(node):
            found.setdefault(MachineKind(node.slurm.gres, versions_of(node)), []).append(node.name)
    return found


Kinds = Mapping[Versions, Sequence[str]]
"""Versions → the nodes that have these, of nodes with the same GPUs in Slurm."""

Drifted = tuple[Sequence[str], str, str, str, str]
"""Nodes, what, its version there, the usual one, and who has that."""


def _of_baseline(kinds: Kinds, stated: Mapping[str, str]) -> Iterator[Drifted]:
    for versions, names in kinds.items():
        for what, version in versions:
            usual = stated.get(what, version)
            if version != usual:
                yield names, what, version, usual, "the baseline of the site has"


def _of_equals(kinds: Kinds, stated: Mapping[str, str]) -> Iterator[Drifted]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for versions, names in kinds.items():
        for what, version in versions:
            counts[what][version] += len(names)
    for what, found in counts.items():
        usual, count = found.most_common(1)[0]
        total = sum(found.values())
        if what in stated or len(found) == 1 or total < NODES_MIN or count < SHARE_MIN * total:
            continue
        for versions, names in kinds.items():
            version = dict(versions).get(what, usual)
            if version != usual:
                yield names, what, version, usual, f"{count} of {total} nodes with the same GPUs have"


def _finding(node: NodeView, what: str, version: str, usual: str, who: str) -> Finding:
    return Finding(
        Signal.RECORDED,
        f"drift.{what.split(maxsplit=1)[0].lower()}",
        node.name,
        node.heard_at or 0.0,
        f"its {what} is {version}, where {who} {usual}",
        Evidence({"what": what, "version": version, "usual": usual}),
    )
