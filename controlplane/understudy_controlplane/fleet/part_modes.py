"""Modes of parts of the fleet, as the configuration names them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from understudy_controlplane.config import Config, Mode, PartMode, least
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.hostlist import expand


def part_modes(config: Config, limit: Mode, nodes: Iterable[NodeView]) -> dict[str, Mode]:
    """Nodes that are in a more careful mode than the highest one. `limit`: what an administrator has set.

    A node that no entry names may be the one that a misspelt entry means: it is no less careful than that one.
    """
    if not config.modes:
        return {}
    views = list(nodes)
    named = [(one, frozenset(expand(one.nodes))) for one in config.modes]
    highest = config.highest_mode.at_most(limit)
    others = least((config.mode, *(one.mode for one, _ in not_in_slurm(config, views))))
    found = {}
    for node in views:
        own = [one.mode for one, names in named if _is_in(node, one, names)]
        mode = least(own or [others]).at_most(limit)
        if mode is not highest:
            found[node.name] = mode
    return found


def not_in_slurm(config: Config, nodes: Iterable[NodeView]) -> list[tuple[PartMode, tuple[str, ...]]]:
    """Entries with names of nodes, or a partition, that Slurm does not have, and which."""
    shown = [node for node in nodes if node.slurm is not None]
    names = {node.name for node in shown}
    partitions = {one for node in shown if node.slurm is not None for one in node.slurm.partitions}
    missing = [
        (one, tuple(name for name in expand(one.nodes) if name not in names))
        if one.nodes
        else (one, () if one.partition in partitions else (one.partition,))
        for one in config.modes
    ]
    return [(one, those) for one, those in missing if those]


def _is_in(node: NodeView, part: PartMode, names: frozenset[str]) -> bool:
    """A node that Slurm does not show may be in any partition."""
    if part.nodes:
        return node.name in names
    return part.mode is Mode.OBSERVE if node.slurm is None else part.partition in node.slurm.partitions
