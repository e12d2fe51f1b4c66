"""The spare that costs a gang least.

The cost of a node in a gang's seat is the traffic of the seat's ranks with each other seat, times the distance to the
node there (`fleet.distance`). Traffic follows from the sizes of the gang's parallelism and from Slurm's block
distribution of ranks over seats (`understudy_wire.parallelism`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.gres import gpus_of_gres
from understudy_controlplane.fleet.job import Job, group_sizes
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import Topology
from understudy_wire.parallelism import (
    ANY,
    DATA_PARALLEL,
    Parallelism,
    parallelism_of,
    ranks_of_node,
    traffic_of_node,
)

RUNNERS_UP = 3

Preference = Callable[[str], tuple[object, ...]]
"""What comes before a node's cost: a node that may fail again costs a gang more than any distance."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of a gang's ranks."""

    seats: tuple[str, ...]  # nodes by node rank
    world: int  # ranks
    sizes: Parallelism = DATA_PARALLEL

    def traffic_of(self, seat: int) -> npt.NDArray[np.float32]:
        """What the ranks of a seat exchange with each seat in a step; nothing with its own."""
        nodes = len(self.seats)
        found = np.zeros(nodes, dtype=np.float32)
        if nodes == 1:
            return found
        for other, weight in traffic_of_node(seat, nodes, self.world, self.sizes).items():
            found[other] += weight
        found += ANY * len(ranks_of_node(seat, nodes, self.world)) / (nodes - 1)
        found[seat] = 0
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    left: str  # the node that the gang leaves
    taken: str
    cost: float
    cost_before: float  # of the node that it leaves
    runners_up: tuple[tuple[str, float], ...]

    @property
    def words(self) -> str:
        """Empty where the next ones would have cost the same."""
        if all(round(cost - self.cost, 3) == 0 for _, cost in self.runners_up):
            return ""
        others = ", ".join(f"{name} {cost:.1f}" for name, cost in self.runners_up)
        return f"{self.taken} costs {self.cost:.1f} in the place of {self.left} (others: {others})"

    def shown(self) -> Json:
        runners_up: list[Json] = [{"node": name, "cost": round(cost, 2)} for name, cost in self.runners_up]
        costs: dict[str, Json] = {"cost": round(self.cost, 2), "cost_before": round(self.cost_before, 2)}
        return {"left": self.left, "taken": self.taken, **costs, "runners_up": runners_up}


@dataclass(frozen=True, slots=True)
class Placement:
    taken: tuple[str, ...]  # in the order of the nodes that are left
    choices: tuple[Choice, ...] = ()  # empty where no topology is known: all places cost the same
    whole: str = ""  # how the gang keeps to whole NVLink blocks, in words

    @property
    def words(self) -> str:
        """Behind the names of the nodes that are taken; empty: it made no difference."""
        return "".join(f"; {one.words}" for one in self.choices if one.words) + (
            f"; {self.whole}" if self.whole else ""
        )

    @property
    def by_node_left(self) -> dict[str, str]:
        return {one.left: one.taken for one in self.choices}

    @property
    def evidence(self) -> dict[str, Json]:
        return {"placement": [one.shown() for one in self.choices]} if self.choices else {}


NO_PLACEMENT = Placement(())


def layout_of(snapshot: Snapshot, job: Job) -> Layout:
    """Layout that the launcher, the ranks, or else Slurm show."""
    gang, table = snapshot.progress.gangs.get(job.key), snapshot.progress.tables.get(job.key)
    by_rank = tuple(dict.fromkeys(name for name in table.nodes if name)) if table is not None else ()
    seats = gang.seats if gang is not None else by_rank or job.slurm.nodes
    first = snapshot.nodes.get(seats[0]) if seats else None
    each = gang.state.ranks_per_node if gang is not None else 0
    if not each and first is not None and first.slurm is not None:
        each = gpus_of_gres(first.slurm.gres)
    world = len(table.nodes) if table is not None and by_rank == seats else len(seats) * max(1, each)
    words = group_sizes(job.slurm.comment, gang.state.group_sizes if gang is not None else "")
    sizes = parallelism_of(words.split()) or DATA_PARALLEL
    if table is not None and replace(sizes, block=1) == DATA_PARALLEL:
        sizes = replace(sizes_of_replicas(table.replicas.tolist()), block=sizes.block)
    return Layout(seats, world, sizes)


def sizes_of_replicas(replicas: Sequence[int]) -> Parallelism:
    """Sizes from the data-parallel rank that each rank reports through the hook. Consecutive ranks of the same one
    count as a tensor group, and those that come later as further stages of a pipeline. Data parallel if one is not
    known, if there is a single replica, or in another order of ranks.
    """
    world, count = len(replicas), len(set(replicas))
    if count < 2 or min(replicas) < 0:
        return DATA_PARALLEL
    together = next(rank for rank, one in enumerate(replicas) if one != replicas[0])
    if world % (together * count) or any(one != rank // together % count for rank, one in enumerate(replicas)):
        return DATA_PARALLEL
    return Parallelism(tensor=together, pipeline=world // (together * count))


def place(
    topology: Topology, layout: Layout, left: Sequence[str], candidates: Sequence[str], preference: Preference
) -> Placement:
    """A candidate for each node that is left, while there are any. `candidates` come best first, by what else is
    known of them: that order decides between equal costs. A node that has no seat, as one that the gang left before,
    gets the first of what is left. A seat whose node is replaced later counts where its node is now.
    """
    distances = topology.distances
    if not distances.any_known:
        return Placement(tuple(candidates[: len(left)]))
    seats = list(layout.seats)
    free = list(candidates)
    chosen: list[Choice | str] = []
    for name in left:
        if not free:
            break
        if name not in layout.seats:
            chosen.append(free.pop(0))
            continue
        seat = layout.seats.index(name)
        costs = (distances.between([name, *free], seats) @ layout.traffic_of(seat)).tolist()
        ranked = sorted(range(len(free)), key=lambda i: (preference(free[i]), round(costs[i + 1], 3), i))
        runners_up = tuple((free[i], costs[i + 1]) for i in ranked[1 : 1 + RUNNERS_UP])
        taken = free[ranked[0]]
        chosen.append(Choice(name, taken, costs[ranked[0] + 1], costs[0], runners_up))
        seats[seat] = taken
        free.remove(taken)
    taken_nodes = tuple(one if isinstance(one, str) else one.taken for one in chosen)
    return Placement(taken_nodes, tuple(one for one in chosen if isinstance(one, Choice)))
