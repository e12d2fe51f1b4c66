"""Order of the gang's nodes in which groups of ranks that exchange much stay within a domain, with spares where that
helps. Pure.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy_wire.parallelism import (
    ALL_RAILS,
    ANY,
    ELSEWHERE,
    SAME_BLOCK,
    SAME_POD,
    SAME_RACK,
    Parallelism,
    traffic_of_node,
)

KINDS = ("nvlink_block", "switch", "rack", "pod")
"""First words of the labels of domains that count for distance, the nearest first."""
PASSES_MAX = 3
LEAST_GAIN = 1e-6
PAIRS_MAX = 100_000
"""Pairs of nodes that are looked at before the order is taken as it is: a few tenths of a second."""

Domains = Mapping[str, Sequence[str]]
"""Node → labels of its domains, such as "rack r1"."""


def arrange(
    in_place: Sequence[str], spares: Sequence[str], ranks_per_node: int, sizes: Parallelism, domains: Domains
) -> tuple[str, ...]:
    """Nodes by node rank. What the ranks exchange, times distance, is never more than with the nodes `in_place`. These
    stay as they are where no group of ranks needs several nodes, or no group can be brought together. A spare of
    unknown domains is not taken.
    """
    span = sizes.nodes_of_group(ranks_per_node)
    if span == 1 or not sizes.divides(len(in_place) * ranks_per_node) or len(in_place) % span:
        return tuple(in_place)
    order = _Order(list(in_place), [node for node in spares if domains.get(node)], ranks_per_node, sizes, domains)
    for _ in range(PASSES_MAX):
        groups = [range(first, first + span) for first in range(0, len(in_place), span)]
        apart = [group for group in groups if not order.whole(group)]
        changed = [_improve(order, group, apart) for group in apart]
        if not any(changed):
            break
    return tuple(order.nodes)


@functools.lru_cache(maxsize=100_000)
def distance(one: frozenset[str], other: frozenset[str]) -> float:
    """Distance of two nodes, by the labels of their domains. The first one's leaf switches are all of its rails."""
    shared = one & other
    if _of(shared, "nvlink_block"):
        return SAME_BLOCK
    found = SAME_RACK if _of(shared, "rack") else SAME_POD if _of(shared, "pod") else ELSEWHERE
    leaves = len(_of(shared, "switch"))
    return min(found, SAME_RACK - (SAME_RACK - ALL_RAILS) * leaves / len(_of(one, "switch"))) if leaves else found


def _of(labels: frozenset[str], kind: str) -> list[str]:
    return [one for one in labels if one.startswith(f"{kind} ")]


@dataclass(frozen=True, slots=True)
class _Change:
    nodes: Mapping[int, str]
    """Seat → its new node."""
    used: tuple[str, ...]
    """Spares that come in."""


class _Order:
    """Nodes by node rank, and those that are free."""

    def __init__(
        self, nodes: list[str], spares: list[str], ranks_per_node: int, sizes: Parallelism, domains: Domains
    ) -> None:
        self.nodes = nodes
        self.spares = spares
        self._each = ranks_per_node
        self._sizes = sizes
        self._pairs = 0
        self._traffic: dict[int, dict[int, float]] = {}
        self.labels = {node: frozenset(domains.get(node, ())) for node in (*nodes, *spares)}
        self._all = Counter(self.labels[node] for node in nodes)
        known = frozenset[str]().union(*self.labels.values())
        self._nearest = next((kind for kind in KINDS if _of(known, kind)), "")

    def whole(self, group: range) -> bool:
        """True if its nodes share a domain of the nearest kind that there is."""
        return bool(_of(frozenset.intersection(*(self.labels[self.nodes[seat]] for seat in group)), self._nearest))

    @property
    def tired(self) -> bool:
        return self._pairs > PAIRS_MAX

    def saving(self, change: _Change) -> float:
        """Cost that all ranks save. Traffic is the same in both directions."""
        saved = 0.0
        for seat, node in change.nodes.items():
            for other, weight in self._traffic_of(seat).items():
                both = weight if other in change.nodes else 2 * weight
                saved += both * self._nearer(change, seat, node, other)
        return saved + (self._saved_with_all(change) if change.used else 0.0)

    def _saved_with_all(self, change: _Change) -> float:
        """Cost that is saved in what all ranks exchange with all others, as the nodes are not the same any more."""
        before = [self.nodes[seat] for seat in change.nodes]
        leaving = [self.labels[node] for node in before if node not in change.nodes.values()]
        staying = self._all - Counter(leaving)
        coming = [self.labels[node] for node in change.used]
        weight = ANY * self._each / (len(self.nodes) - 1)
        return 2 * weight * (self._to_all(leaving, staying) - self._to_all(coming, staying))

    def _to_all(self, some: Sequence[frozenset[str]], others: Mapping[frozenset[str], int]) -> float:
        self._pairs += len(some) * len(others)
        outside = sum(count * distance(one, other) for one in some for other, count in others.items())
        return outside + sum(distance(one, other) for one, other in itertools.combinations(some, 2))

    def _nearer(self, change: _Change, seat: int, node: str, other: int) -> float:
        self._pairs += 1
        before, there = self.labels[self.nodes[seat]], self.nodes[other]
        now = self.labels[change.nodes.get(other, there)]
        return distance(before, self.labels[there]) - distance(self.labels[node], now)

    def _traffic_of(self, seat: int) -> dict[int, float]:
        if seat not in self._traffic:
            count = len(self.nodes)
            self._traffic[seat] = traffic_of_node(seat, count, count * self._each, self._sizes)
        return self._traffic[seat]

    def apply(self, change: _Change) -> None:
        left = {self.nodes[seat] for seat in change.nodes}
        for seat, node in change.nodes.items():
            self.nodes[seat] = node
        free = [node for node in self.spares if node not in change.used]
        self.spares = [*free, *sorted(left.difference(change.nodes.values()))]
        self._all.update(self.labels[node] for node in change.nodes.values())
        self._all.subtract(self.labels[node] for node in left)

    def seats_by_label(self, groups: Sequence[range]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for seat in itertools.chain.from_iterable(groups):
            self._pairs += 1
            for label in self.labels[self.nodes[seat]]:
                found.setdefault(label, []).append(seat)
        return found


def _improve(order: _Order, group: range, apart: Sequence[range]) -> bool:
    """True if a change was found that saves something, and made."""
    if order.tired or order.whole(group):
        return False
    others = order.seats_by_label([one for one in apart if one != group and not order.whole(one)])
    changes = [(order.saving(change), change) for change in _changes(order, group, others)]
    saved, best = max(changes, key=lambda one: one[0], default=(0.0, None))
    if best is None or saved <= LEAST_GAIN:
        return False
    order.apply(best)
    return True


def _changes(order: _Order, group: range, others: Mapping[str, Sequence[int]]) -> Iterator[_Change]:
    """Changes that bring the group into one domain: spares of the domain come in, or nodes of it from other groups that
    are not whole either. `others`: their seats, by the label of a domain.
    """
    nearby = [order.nodes[seat] for seat in group]
    for label in dict.fromkeys(label for node in (*nearby, *order.spares) for label in sorted(order.labels[node])):
        missing = [seat for seat in group if label not in order.labels[order.nodes[seat]]]
        if not missing or order.tired:
            continue
        spares = [node for node in order.spares if label in order.labels[node]][: len(missing)]
        seats = others.get(label, ())
        if len(spares) == len(missing):
            yield _Change(dict(zip(missing, spares, strict=True)), tuple(spares))
        if len(seats) >= len(missing):
            yield _exchange(order, missing, (), seats)
        elif len(spares) < len(missing) <= len(spares) + len(seats):
            yield _exchange(order, missing, spares, seats)


def _exchange(order: _Order, missing: Sequence[int], spares: Sequence[str], seats: Sequence[int]) -> _Change:
    found = dict(zip(missing, spares, strict=False))
    for seat, other in zip(missing[len(spares) :], seats, strict=False):
        found |= {seat: order.nodes[other], other: order.nodes[seat]}
    return _Change(found, tuple(spares))
