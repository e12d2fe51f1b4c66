"""Gangs that have to be in whole NVLink blocks: which spares they get, and what they give up for that. Pure.

Where a block has no spare left for a node that failed there, the other nodes of the unit are well and of no use to the
gang: it gives them up, and gets as many as it needs in another block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from understudy_controlplane.decide.placement import Choice, Layout, Placement, Preference, layout_of, place
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import DomainKind, Topology, shown


@dataclass(frozen=True, slots=True)
class Rule:
    """So many nodes of the gang have to be in one block together, as often as `units`."""

    size: int
    units: int
    required: bool  # without a block for them the gang cannot start; else it can, and each step takes longer
    why: str
    block_of: Mapping[str, str]  # node → the name of its block


@dataclass(frozen=True, slots=True)
class Leaving:
    """A gang that leaves nodes."""

    job: Job
    seats: Sequence[str]
    left: Sequence[str]  # may have empty names: nodes that Slurm has taken away already
    candidates: Sequence[str]  # for their places, best first

    @property
    def kept(self) -> list[str]:
        return [name for name in self.seats if name not in self.left]


@dataclass(frozen=True, slots=True)
class Whole:
    placement: Placement  # for the nodes that are left, then for those that are given up
    given_up: tuple[str, ...]  # nodes that are well


@dataclass(frozen=True, slots=True)
class NoRoom:
    words: str
    required: bool


def rule_of(snapshot: Snapshot, job: Job, seats: Sequence[str], *, requeued: bool = True) -> Rule | None:
    """`seats`: all nodes that Slurm gives the job, or with `requeued=False` those of its ranks in an allocation that it
    keeps. None: nothing is known that needs whole blocks.
    """
    layout = layout_of(snapshot, job)
    by_name = _blocks(snapshot.topology)
    return (
        (_of_slurm(snapshot.topology, job, seats) if requeued else None)
        or _asked_for(job, layout, by_name)
        or _of_groups(layout, by_name)
    )


def _blocks(topology: Topology) -> dict[str, str]:
    blocks = (one for one in topology.domains if one.kind is DomainKind.NVLINK_BLOCK)
    return {name: block.label for block in blocks for name in block.nodes}


def _of_slurm(topology: Topology, job: Job, seats: Sequence[str]) -> Rule | None:
    """A job for which one block is enough, or one group of blocks, never gets more of them."""
    known, nodes = topology.slurm_blocks, len(seats)
    if known is None or job.slurm.segment or known.groups_max(nodes) != 1 or not known.allow(seats):
        return None
    groups = {name: f"blocks of {min(group)}" for group in known.groups(nodes) for name in group}
    labels = _blocks(topology)
    alone = all(len({labels.get(name) for name in group}) == 1 for group in known.groups(nodes))
    why = f"Slurm starts a job of {counted(nodes, 'node')} in one {'block' if alone else 'group of blocks'} only"
    return Rule(nodes, 1, required=True, why=why, block_of=labels if alone else groups)


def _asked_for(job: Job, layout: Layout, block_of: Mapping[str, str]) -> Rule | None:
    size, nodes = max(layout.sizes.block, job.slurm.segment), len(layout.seats)
    if size <= 1 or nodes % size or not block_of:
        return None
    what = f"block={size}" if layout.sizes.block == size else f"--segment={size}"
    return Rule(size, nodes // size, required=True, why=f"the job asks for {what}", block_of=block_of)


def _of_groups(layout: Layout, block_of: Mapping[str, str]) -> Rule | None:
    """The largest groups of ranks on several nodes that are each in one block now."""
    sizes, nodes = layout.sizes, len(layout.seats)
    each = max(1, layout.world // max(1, nodes))
    in_blocks = Counter(block_of[name] for name in layout.seats if name in block_of)
    if not in_blocks or not sizes.divides(layout.world):
        return None
    factors = (sizes.tensor, sizes.context, sizes.expert)
    for count in (3, 2, 1):
        ranks = math.prod(factors[:count])
        size = ranks // each
        fits = size > 1 and ranks % each == 0 and nodes % size == 0
        if fits and sum(held // size for held in in_blocks.values()) == nodes // size:
            why = f"groups of {ranks} ranks are each in one block"
            return Rule(size, nodes // size, required=False, why=why, block_of=block_of)
    return None


def startable(snapshot: Snapshot, leaving: Leaving) -> Sequence[str]:
    """Candidates on which Slurm starts the job with the nodes that it keeps: a job in several blocks, or groups of
    them, gets no more than it needs.
    """
    known, nodes = snapshot.topology.slurm_blocks, len(leaving.seats)
    if known is None or leaving.job.slurm.segment or known.groups_max(nodes) == 1 or not known.allow(leaving.seats):
        return leaving.candidates
    groups = known.groups(nodes)
    used = [group for group in groups if not group.isdisjoint(leaving.kept)]
    free = frozenset(leaving.candidates)
    others = sorted((group for group in groups if group not in used), key=lambda group: -len(group & free))
    allowed = frozenset[str]().union(*used, *others[: known.groups_max(nodes) - len(used)])
    return [name for name in leaving.candidates if name in allowed]


def whole(snapshot: Snapshot, rule: Rule, leaving: Leaving, preference: Preference) -> Whole | NoRoom:
    """A candidate for each node that the gang leaves, and for those that it gives up."""
    kept = leaving.kept
    broken = tuple(name for name in kept if name in snapshot.without_fabric)
    choice = _Choice(snapshot, rule, leaving, preference)
    for given_up in dict.fromkeys((broken, ())):
        staying = [name for name in kept if name not in given_up]
        found = choice.units(staying, len(kept) + len(leaving.left))
        if found is not None:
            new, more = found
            return choice.placed((*given_up, *more), new)
    words = f"{rule.why}, and no block has enough spares for {counted(rule.size, 'node')} of the gang"
    return NoRoom(f"{words} ({len(leaving.candidates)} fit one by one)", rule.required)


def no_room_at(snapshot: Snapshot, rule: Rule, leaving: Leaving) -> frozenset[str]:
    """Candidates that the gang would not get."""
    found = _Choice(snapshot, rule, leaving).units(leaving.kept, len(leaving.seats))
    blocks = found[0] if found is not None else {}
    return frozenset(name for name in leaving.candidates if rule.block_of.get(name) not in blocks)


def has_units(snapshot: Snapshot, rule: Rule, leaving: Leaving) -> bool:
    """True if the gang has whole units without the nodes that it leaves."""
    return _Choice(snapshot, rule, leaving).units(leaving.kept, len(leaving.seats)) is not None


class _Choice:
    def __init__(
        self, snapshot: Snapshot, rule: Rule, leaving: Leaving, preference: Preference = lambda _name: ()
    ) -> None:
        self._topology = snapshot.topology
        self._layout = layout_of(snapshot, leaving.job)
        self._rule = rule
        self._left = leaving.left
        self._preference = preference
        self._free = list(leaving.candidates)
        self._by_block: dict[str, list[str]] = {}
        for name in leaving.candidates:
            if name in rule.block_of:
                self._by_block.setdefault(rule.block_of[name], []).append(name)

    def units(self, kept: Sequence[str], nodes: int) -> tuple[dict[str, int], list[str]] | None:
        """How many nodes of which block complete the units, and kept nodes that are of no use then. Units of which
        nodes are left come before new ones. None: there are too few.
        """
        rule, free = self._rule, self._by_block
        held = Counter(rule.block_of[name] for name in kept if name in rule.block_of)
        new: Counter[str] = Counter()
        while sum((held[block] + new[block]) // rule.size for block in {*held, *new}) < rule.units:
            needs = {block: rule.size - (held[block] + new[block]) % rule.size for block in free}
            fit = [block for block, need in needs.items() if len(free[block]) - new[block] >= need]
            if not fit:
                return None
            costs = self._costs(fit, kept) if len(fit) > 1 else {}
            best = min(fit, key=lambda one: (needs[one], costs.get(one, ()), len(free[one]), one))
            new[best] += needs[best]
        surplus = len(kept) + new.total() - nodes
        useless = list(self._useless(kept, held + new)) if surplus > 0 else []
        return None if surplus > len(useless) else (dict(new), useless[: max(0, surplus)])

    def _costs(self, blocks: Sequence[str], kept: Sequence[str]) -> dict[str, tuple[object, ...]]:
        """Cost of a unit in each block: the standing of its last node, and what the seats that move exchange with those
        that stay, times the distance of the block.
        """
        seats = list(self._layout.seats)
        leaving = [at for at, name in enumerate(seats) if name not in kept]
        staying = np.array([name in kept for name in seats])
        exchanged = sum((self._layout.traffic_of(at) for at in leaving), np.zeros(len(seats), dtype=np.float32))
        first = [self._by_block[block][0] for block in blocks]
        costs = self._topology.distances.between(first, seats) @ (exchanged * staying)
        last = {block: self._by_block[block][: self._rule.size][-1] for block in blocks}
        return {block: (self._preference(last[block]), round(float(costs[i]), 3)) for i, block in enumerate(blocks)}

    def _useless(self, kept: Sequence[str], held: Mapping[str, int]) -> Iterator[str]:
        over = {block: count % self._rule.size for block, count in held.items()}
        for name in reversed(kept):
            block = self._rule.block_of.get(name, "")
            if over.get(block, 1) > 0:
                over[block] = over.get(block, 1) - (1 if block else 0)
                yield name

    def placed(self, given_up: Sequence[str], new: Mapping[str, int]) -> Whole:
        """A node of a block that the gang stays in goes to a seat of that block first."""
        leaving = [*self._left, *given_up]
        seats = list(range(len(leaving)))
        taken: dict[int, str] = {}
        choices: list[Choice] = []
        for block, count in (*new.items(), ("", len(leaving) - sum(new.values()))):
            own = sorted(seats, key=lambda at: self._rule.block_of.get(leaving[at]) != block)[:count]
            free = self._by_block[block] if block else self._free
            found = place(self._topology, self._layout, [leaving[at] for at in own], free, self._preference)
            choices += found.choices
            self._take(found)
            taken |= dict(zip(own, found.taken, strict=False))
            seats = [at for at in seats if at not in own]
        in_order = tuple(taken[at] for at in range(len(leaving)) if at in taken)
        return Whole(Placement(in_order, tuple(choices), self._words(given_up, new)), tuple(given_up))

    def _take(self, found: Placement) -> None:
        by_node = found.by_node_left
        self._layout = replace(self._layout, seats=tuple(by_node.get(name, name) for name in self._layout.seats))
        self._free = [name for name in self._free if name not in found.taken]
        for block, names in self._by_block.items():
            self._by_block[block] = [name for name in names if name not in found.taken]

    def _words(self, given_up: Sequence[str], new: Mapping[str, int]) -> str:
        if not given_up:
            return self._rule.why
        where = " and ".join(f"{counted(count, 'node')} of {block}" for block, count in new.items())
        return f"it gives up {shown(given_up)} as well, which failed in nothing, and gets {where}: {self._rule.why}"
