"""What is different now from the best steps of a gang that is slow as a whole: the likeliest reasons first.

All ranks are slow, so none has a faster peer. What is compared is the gang with itself: where it runs, what its steps
consist of, and what its nodes show now. None of it is proof; it says where a person looks first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from understudy_controlplane.detect.causes import Cause, second_signals
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.node_views import versions_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import Block, StepTable

NAMED_MAX = 4
PART_MIN = 0.5
"""Share of the extra time of a step: a part of it that grew by less explains little."""

WORDS = {
    Cause.CLOCKS: "have throttled clocks",
    Cause.POWER: "have a power brake",
    Cause.PCIE: "have a slow or faulty PCIe link",
    Cause.PCIE_GENERATION: "have a PCIe link of a lower generation under load",
    Cause.NVLINK: "have NVLink errors or too few links",
    Cause.INFINIBAND: "have a fabric port that is down, slow or has errors",
    Cause.CPU: "wait for processors",
    Cause.STORAGE: "wait for storage",
}


def what_changed(snapshot: Snapshot, table: StepTable, best: Block, now: Block) -> list[str]:
    """Lines for people, the likeliest first. Empty: nothing that is known."""
    return [
        *_data(best, now),
        *_shown(snapshot, table),
        *_placement(best, now),
        *_software(snapshot, table),
        *_part(best, now),
    ]


def what_its_nodes_show(snapshot: Snapshot, table: StepTable) -> list[str]:
    """Lines for people, even if there are no better steps to compare with."""
    return [*_shown(snapshot, table), *_software(snapshot, table)]


def _data(best: Block, now: Block) -> Iterator[str]:
    longer = now.seconds - best.seconds
    if now.data_seconds - best.data_seconds >= PART_MIN * longer:
        yield f"its ranks wait {now.data_seconds:.3g} s a step for data, where it was {best.data_seconds:.3g} s"


def _shown(snapshot: Snapshot, table: StepTable) -> Iterator[str]:
    """What its nodes show now that makes ranks slow."""
    places = dict.fromkeys(zip(table.nodes, table.gpus, strict=True))
    found: dict[Cause, Counter[str]] = {}
    for name, gpu in places:
        view = snapshot.nodes.get(name)
        for cause, _ in second_signals(view, gpu) if view is not None else ():
            found.setdefault(cause, Counter())[name] += 1
    for cause, nodes in sorted(found.items(), key=lambda one: -len(one[1])):
        yield f"{_named(list(nodes), len(set(table.nodes)))} {WORDS[cause]}"


def _placement(best: Block, now: Block) -> Iterator[str]:
    new = [name for name in dict.fromkeys(now.nodes) if name and name not in best.nodes]
    if best.nodes and new:
        yield f"since then it runs on {_named(new, len(set(now.nodes)))} that it did not have"
    elif best.nodes and now.nodes != best.nodes:
        yield "since then its ranks are in another order on the same nodes"
    if now.attempt != best.attempt:
        yield "it was started again since then, perhaps with another program or configuration"


def _software(snapshot: Snapshot, table: StepTable) -> Iterator[str]:
    """Versions that its nodes do not all have."""
    views: list[NodeView] = [snapshot.nodes[name] for name in dict.fromkeys(table.nodes) if name in snapshot.nodes]
    own = [dict(versions_of(view)) for view in views]
    for what in dict.fromkeys(key for versions in own for key in versions):
        counts = Counter(versions[what] for versions in own if what in versions)
        if len(counts) > 1:
            yield f"its nodes differ in {what}: " + ", ".join(
                f"{version} on {n}" for version, n in counts.most_common()
            )


def _part(best: Block, now: Block) -> Iterator[str]:
    """Line: ranks compute longer, or wait longer for each other."""
    if not (best.self_seconds and now.self_seconds):
        return
    longer = now.seconds - best.seconds
    if now.self_seconds - best.self_seconds >= PART_MIN * longer:
        yield "its ranks compute longer, as with more work, lower clocks or another program"
    elif now.data_seconds - best.data_seconds < PART_MIN * longer:
        yield "its ranks compute as long as before and wait longer for each other, as with a slow fabric"


def _named(names: list[str], of: int) -> str:
    shown = ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")
    return f"{len(names)} of its {of} nodes ({shown})"
