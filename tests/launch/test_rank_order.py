"""The order of ranks over nodes: groups stay in their domains, and no order is worse than replacing in place."""

from __future__ import annotations

import random
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_controlplane.decide.placement import Layout
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology, merged
from understudy_launcher.rank_order import arrange, distance
from understudy_wire.parallelism import Parallelism

BLOCK, SWITCH, RACK, POD = DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.RACK, DomainKind.POD
OVER_TWO_NODES = Parallelism(tensor=16)


def racks(**nodes: str) -> dict[str, list[str]]:
    return {name: [f"rack {rack}"] for rack, members in nodes.items() for name in members.split()}


def ordered(seats: str, spares: str, domains: dict[str, list[str]], sizes: Parallelism = OVER_TWO_NODES) -> str:
    return " ".join(arrange(seats.split(), spares.split(), 8, sizes, domains))


def test_two_groups_that_each_lost_a_node_to_the_other_rack_become_whole() -> None:
    two = racks(a="a1 a2 a3 a4", b="b1 b2 b3 b4")
    assert ordered("a1 b4 a3 a4 b1 b2 b3 a2", "", two) == "a1 a2 a3 a4 b1 b2 b3 b4"


def test_a_group_moves_as_a_whole_where_spares_of_one_rack_can_seat_it() -> None:
    """a2 failed, and b9 came in its place: a1 gives its seat to b8, and is a spare."""
    two = racks(a="a1 a3 a4", b="b1 b2 b8 b9")
    assert ordered("a1 b9 a3 a4 b1 b2", "b8", two) == "b8 b9 a3 a4 b1 b2"


def test_a_unit_of_nodes_that_has_to_be_in_one_block_moves_as_a_whole() -> None:
    """Also where no group of ranks needs several nodes."""
    blocks = {name: [f"nvlink_block {name[0]}"] for name in ["a1", "a3", "a4", "b1", "b2", "b8", "b9"]}
    assert ordered("a1 b9 a3 a4 b1 b2", "b8", blocks, Parallelism(block=2)) == "b8 b9 a3 a4 b1 b2"


def test_one_node_of_another_rack_stays_where_it_is_when_nothing_makes_its_group_whole() -> None:
    two = racks(a="a1 a3 a4", b="b1 b2 b9")
    assert ordered("a1 b9 a3 a4 b1 b2", "", two) == "a1 b9 a3 a4 b1 b2"


def test_groups_that_fit_on_a_node_and_sizes_that_do_not_fit_leave_the_order() -> None:
    two = racks(a="a1 a2", b="b1 b2")
    for sizes in (Parallelism(), Parallelism(tensor=8), Parallelism(tensor=16, pipeline=3), Parallelism(tensor=12)):
        assert ordered("a1 b1 a2 b2", "", two, sizes) == "a1 b1 a2 b2"
    assert ordered("a1 b1 a2 b2", "", {}) == "a1 b1 a2 b2", "no topology"


def test_a_spare_of_unknown_domains_is_not_taken() -> None:
    assert ordered("a1 b1", "a2", racks(a="a1", b="b1")) == "a1 b1"


def drawn(chance: random.Random, names: list[str]) -> Topology:
    kinds = [kind for kind in (BLOCK, SWITCH, RACK, POD) if chance.random() < 0.6] or [RACK]
    found: dict[tuple[DomainKind, str], list[str]] = {}
    for kind in kinds:
        rails = chance.randint(1, 3) if kind is SWITCH else 1
        for name in names:
            for rail in range(rails):
                found.setdefault((kind, f"{rail}-{chance.randrange(4)}"), []).append(name)
    return merged(Domain(kind, name, tuple(nodes)) for (kind, name), nodes in found.items())


def labels(topology: Topology) -> dict[str, list[str]]:
    return {name: [one.label for one in domains] for name, domains in topology.of_node.items()}


def cost(topology: Topology, seats: list[str], world: int, sizes: Parallelism) -> float:
    """Cost as the control plane counts it: of all ranks together."""
    layout = Layout(tuple(seats), world, sizes)
    between = topology.distances.between(seats, seats)
    return float(sum(np.dot(between[seat], layout.traffic_of(seat)) for seat in range(len(seats))))


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_on_any_topology_the_order_is_never_worse_than_replacing_in_place(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a topology, no secret
    names = [f"n{i}" for i in range(24)]
    chance.shuffle(names)
    topology = drawn(chance, names)
    sizes = Parallelism(
        tensor=chance.choice([2, 4, 8, 16]), context=chance.choice([1, 2]), expert=chance.choice([1, 2, 4])
    )
    seats, spares, each = names[:16], names[16 : 16 + chance.randrange(8)], chance.choice([1, 2, 4])
    found = list(arrange(seats, spares, each, sizes, labels(topology)))
    assert len(set(found)) == 16
    assert set(found) <= {*seats, *spares}
    before = cost(topology, seats, 16 * each, sizes)
    assert cost(topology, found, 16 * each, sizes) <= before + 1e-3 * before


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_launcher_and_control_plane_measure_the_same_distance(seed: int) -> None:
    names = [f"n{i}" for i in range(8)]
    topology = drawn(random.Random(seed), names)  # noqa: S311 - a topology, no secret
    by_label = {name: frozenset(found) for name, found in labels(topology).items()}
    expected = topology.distances.between(names, names)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            if i != j:
                assert abs(distance(by_label[one], by_label[other]) - expected[i, j]) < 1e-6


def test_a_large_gang_is_brought_together_and_one_in_disorder_delays_no_restart() -> None:
    names = [f"n{i:04}" for i in range(2052)]
    domains = {name: [f"rack {i // 18}", f"pod {i // 288}"] for i, name in enumerate(names)}
    seats = names[:2048]
    for first in range(0, 400, 20):  # twenty earlier swaps crossed racks
        seats[first], seats[first + 1024] = seats[first + 1024], seats[first]
    sizes = Parallelism(tensor=16, pipeline=4)
    found = arrange(seats, names[2048:], 8, sizes, domains)
    assert not [i for i in range(0, 2048, 2) if domains[found[i]][0] != domains[found[i + 1]][0]]
    random.Random(1).shuffle(seats)  # noqa: S311 - an order, no secret
    began = time.process_time()
    arrange(seats, names[2048:], 8, sizes, domains)
    assert time.process_time() - began < 3, "it was 0.3 s"
