"""How the ranks of a gang share the work, and so which of them exchange how much; how far nodes are apart. Pure.

The control plane chooses spares by it, and the launcher the order of ranks: both count the same.

Ranks are numbered as Megatron, DeepSpeed and torch's device meshes do it by default: tensor first, then context, then
data, then pipeline. Expert groups are consecutive data ranks.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = 100.0, 30.0, 30.0, 10.0, 3.0
"""Traffic of a rank with the others of its group in a step, in no unit: tensor-parallel ranks exchange activations in
every layer, data-parallel ones gradients once a step."""

ANY = 1.0
"""Weight of what is exchanged with all other ranks of the gang together: of two equal places, the one nearer to the
gang is better.
"""

SAME_BLOCK, ALL_RAILS, SAME_RACK, SAME_POD, ELSEWHERE = 0.5, 1.0, 2.0, 3.0, 4.0
"""Distance of two nodes: of one NVLink block; on the same leaf switch with every port; in one rack; in one pod; any
others. Nodes that share the leaf switches of some rails are between ALL_RAILS and SAME_RACK."""

SIZES = {"tp": "tensor", "cp": "context", "ep": "expert", "pp": "pipeline", "block": "block"}
_WORD = re.compile(r"(tp|cp|ep|pp|block)=([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the groups. What they leave of the world is data parallel."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    block: int = 1
    """Consecutive nodes that have to be in one NVLink block."""

    def divides(self, world: int) -> bool:
        return world % (self.tensor * self.context * self.pipeline) == 0

    def nodes_of_group(self, ranks_per_node: int) -> int:
        """Consecutive nodes of the smallest group that needs several: tensor, then context, then expert. 1: none,
        or groups that begin in the middle of a node. What has to be in one block comes before them.
        """
        if self.block > 1:
            return self.block
        size = 1
        for factor in (self.tensor, self.context, self.expert):
            size *= factor
            if size > ranks_per_node:
                return size // ranks_per_node if size % ranks_per_node == 0 else 1
        return 1


DATA_PARALLEL = Parallelism()


def parallelism_of(words: Sequence[str]) -> Parallelism | None:
    """`words` are those of a Slurm comment, or of a launcher: "understudy tp=8 pp=4". None: none of them is a size."""
    sizes = {SIZES[match[1]]: int(match[2]) for word in words if (match := _WORD.fullmatch(word))}
    return Parallelism(**sizes) if sizes else None


def words_of_sizes(comment: Sequence[str], reported: str) -> str:
    """Sizes of the groups in a Slurm comment, else those that a launcher found. The block stands in the comment."""
    named = [word for word in comment if _WORD.fullmatch(word)]
    groups = any(not word.startswith("block=") for word in named)
    return " ".join(named if groups else [*named, *reported.split()])


def traffic(ranks: range, world: int, sizes: Parallelism) -> dict[int, float]:
    """Rank → what the given ranks exchange with it in a step. Sizes that do not divide the world are left out."""
    if not sizes.divides(world):
        sizes = DATA_PARALLEL
    data = world // (sizes.tensor * sizes.context * sizes.pipeline)
    shape = (sizes.tensor, sizes.context, data, sizes.pipeline)
    found: defaultdict[int, float] = defaultdict(float)
    for rank in ranks:
        place = _coordinates(rank, shape)
        for axis, other, weight in _partners(place, shape, min(sizes.expert, data)):
            there = list(place)
            there[axis] = other
            found[_rank(there, shape)] += weight
    return dict(found)


def _coordinates(rank: int, shape: Sequence[int]) -> list[int]:
    found = []
    for size in shape:
        found.append(rank % size)
        rank //= size
    return found


def _rank(place: Sequence[int], shape: Sequence[int]) -> int:
    found = 0
    for own, size in zip(reversed(place), reversed(shape), strict=True):
        found = found * size + own
    return found


def _partners(place: Sequence[int], shape: Sequence[int], expert: int) -> Iterator[tuple[int, int, float]]:
    """Axis, coordinate there, weight: of the ranks that differ from this one in that coordinate alone."""
    tensor, context, data, pipeline = place
    tensors, contexts, datas, pipelines = shape
    yield from ((0, other, TENSOR / (tensors - 1)) for other in range(tensors) if other != tensor)
    yield from ((1, other, CONTEXT / 2) for other in _ring(context, contexts))
    yield from ((2, other, DATA / 2) for other in _ring(data, datas))
    first = data - data % expert
    group = range(first, min(first + expert, datas))
    yield from ((2, other, EXPERT / (expert - 1)) for other in group if other != data)
    yield from ((3, other, PIPELINE / 2) for other in (pipeline - 1, pipeline + 1) if 0 <= other < pipelines)


def _ring(own: int, count: int) -> tuple[int, ...]:
    """The neighbours in a ring of this many; of two, the other one twice."""
    return () if count < 2 else ((own - 1) % count, (own + 1) % count)


def ranks_of_node(node_rank: int, nodes: int, world: int) -> range:
    """Slurm's block distribution: consecutive ranks on each node."""
    each = max(1, math.ceil(world / nodes))
    return range(node_rank * each, min((node_rank + 1) * each, world))


def traffic_of_node(node_rank: int, nodes: int, world: int, sizes: Parallelism) -> dict[int, float]:
    """Node rank → what the ranks of this node exchange with those there, without what they do with all (`ANY`)."""
    each = max(1, math.ceil(world / nodes))
    found: defaultdict[int, float] = defaultdict(float)
    for rank, weight in traffic(ranks_of_node(node_rank, nodes, world), world, sizes).items():
        found[min(rank // each, nodes - 1)] += weight
    found.pop(node_rank, None)
    return dict(found)
