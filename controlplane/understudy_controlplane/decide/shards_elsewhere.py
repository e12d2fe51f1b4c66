"""Finds nodes of a gang that did not write what their ranks restore, of a checkpoint on disks of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from understudy_wire.facts import Layout


class Part(NamedTuple):
    """What a rank wrote of a checkpoint."""

    node: str
    file: str


def strangers(parts: Mapping[int, Part], layout: Layout, gang: Mapping[int, str]) -> dict[str, str]:
    """Each of those nodes with a file that it has to see. `parts` and `gang` (the nodes) are by rank. A rank that wrote
    a file restores that one, unless the layout says otherwise; one that wrote none restores those of others.
    """
    found: dict[str, str] = {}
    for rank, node in gang.items():
        own = parts.get(rank)
        needed = parts.values() if own is None or layout is Layout.RESHARDABLE else (own,)
        foreign = next((one.file for one in needed if one.node != node), None)
        if foreign is not None:
            found.setdefault(node, foreign)
    return found
