"""Nodes that began to fail alike at about the same time have one cause, and none of them is to blame for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from understudy_controlplane.detect.silence import TOGETHER_SECONDS
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState, NodeView


def bears_witness(node: NodeView) -> bool:
    """Whether what a node shows counts when others fail like it: in service, and heard.

    A node that waits for its repair is no evidence about others, and the last report of a silent one is too old.
    """
    return (
        node.state not in OUT_OF_SERVICE
        and node.state not in (NodeState.FOREIGN_DRAIN, NodeState.UNKNOWN)
        and node.heard_at is not None
        and not (node.slurm and node.slurm.on_leave)
    )


def nodes_alike(failures: Sequence[tuple[NodeView, float]]) -> list[int]:
    """For each failure, of a node and since when: how many nodes began within TOGETHER_SECONDS of it, its own included.

    A node counts once, however many of its parts fail. A switch may take thousands of ports, so the window slides.
    """
    witnesses = sorted((at, node.name) for node, at in failures if bears_witness(node))
    counts = [1] * len(failures)
    inside: Counter[str] = Counter()
    first = last = 0
    for i in sorted(range(len(failures)), key=lambda i: failures[i][1]):
        node, at = failures[i]
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
