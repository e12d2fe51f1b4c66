"""Communicators whose collectives take longer than those of their peers: a link or a rail that halves a collective
slows no rank's own work, and is invisible to the times of steps.

All ranks of a collective end together, and the last to enter waits for no other: its time, the shortest of all ranks,
is that of the transfer. A rank that computes longer makes the others wait, and changes nothing of that. Peers are
communicators of the same purpose with as many ranks on as many nodes, for the same operation and size; half of them at
least are taken for well. A communicator is slow where it takes `FACTOR_MIN` times as long as they do, in each third of
the time.

Where the slow ones meet is what is named: a node of which all communicators are slow, a rail (the same place on several
nodes), or two nodes. This is evidence, and no proof: nothing is taken out of service for it. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

FACTOR_MIN = 1.5
"""A link that has lost half of its lanes makes it 2."""
PEERS_MIN = 3
"""Other communicators that do the same: fewer show nothing that is usual."""
PARTS = 3
COLLECTIVES_MIN = 10
"""Fewest collectives of a communicator in each part of the time."""
PAIR = 2


class Kind(NamedTuple):
    """What is compared. Sizes are those of NCCL's records."""

    purpose: str  # name of the communicator without its numbers, where NCCL knows one
    ranks: int
    nodes: int
    operation: str
    size_bytes: int
    spread: int = 0  # over how many switches and the like; 0: not known


class Member(NamedTuple):
    """A rank's GPU: its node, and its place among those of the gang there; None: not known."""

    node: str
    place: int | None


@dataclass(frozen=True, slots=True)
class Communicator:
    name: str
    members: tuple[Member, ...]
    seconds: Mapping[Kind, Sequence[float]]
    """Times of collectives of which all ranks are known, the oldest first."""

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(one.node for one in self.members)


class What(StrEnum):
    NODE = "node"
    RAIL = "rail"
    PAIR = "pair"
    COMMUNICATOR = "communicator"


@dataclass(frozen=True, slots=True)
class Slow:
    communicator: Communicator
    kind: Kind
    seconds: float
    usual_seconds: float
    peers: int

    @property
    def factor(self) -> float:
        return self.seconds / self.usual_seconds


@dataclass(frozen=True, slots=True)
class SlowPlace:
    what: What
    nodes: tuple[str, ...]
    slow: tuple[Slow, ...]  # the slowest first
    place: int | None = None  # on each of the nodes


def slow_places(communicators: Sequence[Communicator], least: int = PARTS * COLLECTIVES_MIN) -> list[SlowPlace]:
    """`least`: fewest times of a communicator that count. They may be of single collectives, or of a minute each."""
    judged, slow = _judged(communicators, least)
    left = dict(slow)
    found = []
    for node in _slow_nodes(judged, slow):
        mine = [name for name, one in left.items() if node in one.communicator.nodes]
        if mine:
            found.append(SlowPlace(What.NODE, (node,), _sorted([left.pop(name) for name in mine])))
    return found + [_by_itself(one) for one in _sorted([*left.values()])]


def _by_itself(slow: Slow) -> SlowPlace:
    one = slow.communicator
    nodes, places = tuple(sorted(one.nodes)), {member.place for member in one.members}
    (place,) = places if len(places) == 1 else (None,)
    if place is not None and len(nodes) == len(one.members) > PAIR:
        return SlowPlace(What.RAIL, nodes, (slow,), place)
    what = What.NODE if len(nodes) == 1 else What.PAIR if len(nodes) == PAIR else What.COMMUNICATOR
    return SlowPlace(what, nodes, (slow,), place if what is What.PAIR else None)


def _sorted(slow: Sequence[Slow]) -> tuple[Slow, ...]:
    return tuple(sorted(slow, key=lambda one: (-one.factor, one.communicator.name)))


def _slow_nodes(judged: Mapping[str, Communicator], slow: Mapping[str, Slow]) -> list[str]:
    """Nodes of which all communicators are slow, and more than one. Nodes of the same ones are not distinguished."""
    of_node: dict[str, set[str]] = defaultdict(set)
    for name, one in judged.items():
        for node in one.nodes:
            of_node[node].add(name)
    found = {node: names for node, names in of_node.items() if len(names) > 1 and names <= slow.keys()}
    return [node for node, names in found.items() if sum(names == others for others in found.values()) == 1]


def _judged(communicators: Sequence[Communicator], least: int) -> tuple[dict[str, Communicator], dict[str, Slow]]:
    """Those that have peers, and the slow ones of these, each by what it spends most of its time with."""
    by_kind: dict[Kind, list[Communicator]] = defaultdict(list)
    for one in communicators:
        for kind, seconds in one.seconds.items():
            if len(seconds) >= least:
                by_kind[kind].append(one)
    spent: dict[str, float] = {}
    judged: dict[str, Communicator] = {}
    slow: dict[str, Slow] = {}
    for kind, those in by_kind.items():
        if len(those) <= PEERS_MIN:
            continue
        of_kind = {one.communicator.name: one for one in _slow_of(kind, those)}
        for one in those:
            total = sum(one.seconds[kind])
            judged[one.name] = one
            if total <= spent.get(one.name, 0.0):
                continue
            spent[one.name] = total
            slow.pop(one.name, None)
            if one.name in of_kind:
                slow[one.name] = of_kind[one.name]
    return judged, slow


def _slow_of(kind: Kind, those: Sequence[Communicator]) -> Iterator[Slow]:
    parts = [[median(part) for part in _parts(one.seconds[kind])] for one in those]
    usual = [median(of_part) for of_part in zip(*parts, strict=True)]
    for one, own in zip(those, parts, strict=True):
        if all(mine >= FACTOR_MIN * others > 0 for mine, others in zip(own, usual, strict=True)):
            yield Slow(one, kind, median(one.seconds[kind]), median(usual), len(those) - 1)


def _parts(seconds: Sequence[float]) -> Iterator[Sequence[float]]:
    size = len(seconds) / PARTS
    return (seconds[round(part * size) : round((part + 1) * size)] for part in range(PARTS))
