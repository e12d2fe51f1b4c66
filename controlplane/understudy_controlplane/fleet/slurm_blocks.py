"""Blocks of Slurm's topology/block, and on which nodes Slurm starts a job there. Pure.

A job may use as few blocks as it needs, or as few groups of them: Slurm plans with groups of the sizes in BlockSizes.
It refuses nodes of more blocks than that, also in a reservation. Seen with 24.11 and 26.05.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.slurm import TopologyUnit, UnitKind


@dataclass(frozen=True, slots=True)
class SlurmBlocks:
    blocks: tuple[tuple[str, ...], ...]  # in Slurm's order
    sizes: tuple[int, ...]  # BlockSizes, in nodes, smallest first

    def groups(self, nodes: int) -> list[frozenset[str]]:
        """The blocks that count as one for a job of so many nodes. Blocks left over at the end are in none."""
        each = self._blocks_of_group(nodes)
        starts = range(0, len(self.blocks) - each + 1, each)
        return [frozenset(name for block in self.blocks[at : at + each] for name in block) for at in starts]

    def groups_max(self, nodes: int) -> int:
        """Most of these groups in which a job of so many nodes may be."""
        return math.ceil(self._blocks_needed(nodes) / self._blocks_of_group(nodes))

    def allow(self, seats: Collection[str]) -> bool:
        """True if Slurm starts a job on these nodes."""
        groups = self.groups(len(seats))
        used = [group for group in groups if not group.isdisjoint(seats)]
        return len(used) <= self.groups_max(len(seats)) and set(seats) <= frozenset[str]().union(*used)

    def _blocks_needed(self, nodes: int) -> int:
        return math.ceil(nodes / self.sizes[0])

    def _blocks_of_group(self, nodes: int) -> int:
        """The fewest that suffice, else the most that Slurm plans with."""
        known = [size // self.sizes[0] for size in self.sizes]
        return next((one for one in known if one >= self._blocks_needed(nodes)), known[-1])


def slurm_blocks(units: Sequence[TopologyUnit]) -> SlurmBlocks | None:
    """None where Slurm has other topologies as well: which of them counts depends on the partition."""
    blocks = tuple(one.nodes for one in units if one.kind is UnitKind.BLOCK)
    sizes = sorted({one.size for one in units})
    if not blocks or not sizes[0] or any(one.kind is UnitKind.SWITCH for one in units):
        return None
    once = len({name for block in blocks for name in block}) == sum(map(len, blocks))
    return SlurmBlocks(blocks, tuple(sizes)) if once else None
