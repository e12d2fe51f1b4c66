"""Nodes of a gang that are far from all of its others, as an earlier swap left them: when the gang starts again in any
case, it gets a nearer spare for them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.placement import Layout, Placement, layout_of, place
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.topology import DomainKind, Topology

COST_SHARE_MAX = 0.5
"""A spare has to cost the seat at most this share of what the node there costs."""

NODES_MAX = 4
"""Most nodes that one restart exchanges."""

NEAR = frozenset({DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.RACK})


@dataclass(frozen=True, slots=True)
class Nearer:
    placement: Placement  # the one that was asked about, and behind it that for the nodes that are given up
    given_up: tuple[str, ...] = ()  # nodes that are well


def nearer(current: Round, job: Job, found: Placement, candidates: Sequence[str]) -> Nearer:
    """Only spares of the pool of good standing are taken, and as many are left: the pool gets the nodes that are given
    up, where no job takes them first.
    """
    topology, layout = current.snapshot.topology, layout_of(current.snapshot, job)
    by_node, preference = found.by_node_left, current.preference
    layout = replace(layout, seats=tuple(by_node.get(name, name) for name in layout.seats))
    free = [name for name in candidates if name not in found.taken and not any(preference(name))]
    given_up: list[str] = []
    for name in _alone(topology, layout):
        if len(given_up) == NODES_MAX or len(free) < 2 + len(given_up):
            break
        one = place(topology, layout, [name], free, preference)
        if one.choices and one.choices[0].cost <= COST_SHARE_MAX * one.choices[0].cost_before:
            (taken,) = one.taken
            given_up.append(name)
            free.remove(taken)
            layout = replace(layout, seats=tuple(taken if seat == name else seat for seat in layout.seats))
            found = replace(found, taken=(*found.taken, taken), choices=(*found.choices, *one.choices))
    if not given_up:
        return Nearer(found)
    words = f"it gives up {', '.join(given_up)} as well, far from its other nodes, for spares near them"
    return Nearer(replace(found, whole="; ".join(filter(None, (found.whole, words)))), tuple(given_up))


def _alone(topology: Topology, layout: Layout) -> list[str]:
    """Seats without another one near them, where most have one."""
    near = {name: [one.label for one in topology.of_node.get(name, ()) if one.kind in NEAR] for name in layout.seats}
    count = Counter(label for labels in near.values() for label in labels)
    alone = [name for name, labels in near.items() if labels and all(count[label] == 1 for label in labels)]
    return alone if 2 * len(alone) < len(layout.seats) else []
