"""How far nodes are from each other, by the domains that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from understudy_wire.parallelism import ALL_RAILS, ELSEWHERE, SAME_BLOCK, SAME_POD, SAME_RACK

if TYPE_CHECKING:
    from understudy_controlplane.fleet.topology import Topology

KINDS = ("nvlink_block", "switch", "rack", "pod")
"""Kinds of domains that count for distance."""

Matrix = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.integer[Any]]


class Distances:
    """Distances of the nodes of a topology. Made once for each topology."""

    def __init__(self, topology: Topology) -> None:
        self._index = {name: i for i, name in enumerate(topology.of_node)}
        self._of = {kind: self._domains(topology, kind) for kind in KINDS}
        self.any_known = any(bool((one >= 0).any()) for one in self._of.values())

    def _domains(self, topology: Topology, kind: str) -> Numbers:
        """Domains of each node (row) by number, -1 behind them. The last row is for nodes of no domain."""
        own: list[list[int]] = [[] for _ in range(len(self._index) + 1)]
        for number, domain in enumerate(one for one in topology.domains if one.kind == kind):
            for name in domain.nodes:
                own[self._index[name]].append(number)
        found = np.full((len(own), max(map(len, own))), -1, dtype=np.int32)
        for row, numbers in enumerate(own):
            found[row, : len(numbers)] = numbers
        return found

    def between(self, some: Sequence[str], others: Sequence[str]) -> Matrix:
        """Distance of each of `some` (row) to each of `others` (column). A node has none to itself."""
        unknown = len(self._index)
        rows = np.array([self._index.get(name, unknown) for name in some], dtype=np.int64)
        columns = np.array([self._index.get(name, unknown) for name in others], dtype=np.int64)
        found = np.full((len(rows), len(columns)), ELSEWHERE, dtype=np.float32)
        found[self._shared("pod", rows, columns) > 0] = SAME_POD
        found[self._shared("rack", rows, columns) > 0] = SAME_RACK
        rails = np.maximum((self._of["switch"][rows] >= 0).sum(axis=1, keepdims=True), 1)
        leaves = self._shared("switch", rows, columns)
        by_leaf = np.where(leaves > 0, SAME_RACK - (SAME_RACK - ALL_RAILS) * leaves / rails, ELSEWHERE)
        found = np.minimum(found, by_leaf.astype(np.float32))
        found[self._shared("nvlink_block", rows, columns) > 0] = SAME_BLOCK
        found[(rows[:, None] == columns[None, :]) & (rows[:, None] < unknown)] = 0.0
        return found

    def _shared(self, kind: str, rows: Numbers, columns: Numbers) -> Numbers:
        """How many domains of the kind a row and a column share."""
        some, others = self._of[kind][rows], self._of[kind][columns]
        found: Numbers = np.zeros((len(rows), len(columns)), dtype=np.int32)
        for own in some.T:
            known = own[:, None] >= 0
            for other in others.T:
                found += (own[:, None] == other[None, :]) & known
        return found
