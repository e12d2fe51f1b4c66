"""Communicators that are slower than their peers, and where they meet."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from understudy_controlplane.detect.slow_collectives import (
    COLLECTIVES_MIN,
    PARTS,
    Communicator,
    Kind,
    Member,
    What,
    slow_places,
)

RAILS, NODES, STAGES = 8, 8, 2
COUNT = PARTS * COLLECTIVES_MIN
Factor = Callable[[str, frozenset[str], int | None, float], float]
"""Purpose, nodes and place of a communicator, and the share of the time that is over → how many times as slow."""


def communicator(
    name: str, purpose: str, members: list[Member], factor: Factor, draw: random.Random, usual: float = 0.002
) -> Communicator:
    nodes, places = frozenset(one.node for one in members), {one.place for one in members}
    kind = Kind(purpose, len(members), len(nodes), "AllReduce", 2**26)
    place = next(iter(places)) if len(places) == 1 else None
    seconds = [
        usual * draw.lognormvariate(0, 0.15) * factor(purpose, nodes, place, number / COUNT) for number in range(COUNT)
    ]
    return Communicator(name, tuple(members), {kind: seconds})


def mesh(factor: Factor, seed: int = 0) -> list[Communicator]:
    """Two stages of eight nodes: a communicator inside each node, one of each rail and stage, and one of each two nodes
    that hand over.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    found = []
    for stage in range(STAGES):
        names = [f"n{stage * NODES + number}" for number in range(NODES)]
        found += [
            communicator(f"in {one}", "tp", [Member(one, place) for place in range(RAILS)], factor, draw, 0.0004)
            for one in names
        ]
        found += [
            communicator(f"rail {place} of {stage}", "dp", [Member(one, place) for one in names], factor, draw)
            for place in range(RAILS)
        ]
    found += [
        communicator(f"pair {number}", "pp", [Member(f"n{number}", 0), Member(f"n{number + NODES}", 0)], factor, draw)
        for number in range(NODES)
    ]
    return found


def named(factor: Factor, seed: int = 0) -> list[tuple[What, int, int | None]]:
    return [(one.what, len(one.nodes), one.place) for one in slow_places(mesh(factor, seed))]


def test_a_slow_rail_is_named_with_its_place() -> None:
    def rail(purpose: str, nodes: frozenset[str], place: int | None, _at: float) -> float:
        return 2.0 if purpose == "dp" and place == 3 and "n0" in nodes else 1.0

    assert named(rail) == [(What.RAIL, NODES, 3)]
    (found,) = slow_places(mesh(rail))
    (slow,) = found.slow
    assert (slow.communicator.name, slow.peers) == ("rail 3 of 0", RAILS * STAGES - 1)
    assert slow.factor == pytest.approx(2.0, rel=0.1)


def test_a_node_whose_gpus_are_slow_with_each_other_is_named() -> None:
    def node(purpose: str, nodes: frozenset[str], _place: int | None, _at: float) -> float:
        return 1.8 if purpose == "tp" and "n5" in nodes else 1.0

    assert named(node) == [(What.NODE, 1, None)]


def test_two_nodes_whose_path_is_slow_are_a_pair() -> None:
    def pair(_purpose: str, nodes: frozenset[str], _place: int | None, _at: float) -> float:
        return 3.0 if nodes == {"n2", "n10"} else 1.0

    assert named(pair) == [(What.PAIR, 2, 0)]


def test_slow_communicators_of_one_node_meet_there() -> None:
    draw = random.Random(0)  # noqa: S311 - not for secrets

    def slow(_purpose: str, nodes: frozenset[str], _place: int | None, _at: float) -> float:
        return 2.0 if "n0" in nodes else 1.0

    pairs = [(one, other) for one in range(5) for other in range(one)]
    many = [
        communicator(f"{one} {other}", "", [Member(f"n{one}", None), Member(f"n{other}", None)], slow, draw)
        for one, other in pairs
    ]
    (found,) = slow_places(many)
    assert (found.what, found.nodes, len(found.slow)) == (What.NODE, ("n0",), 4)


def test_where_places_are_not_known_the_communicator_is_named() -> None:
    draw = random.Random(0)  # noqa: S311 - not for secrets
    many = [
        communicator(
            f"{number}",
            "",
            [Member(f"n{one}", None) for one in range(4)],
            lambda *_seen, number=number: 2.0 if number == 0 else 1.0,
            draw,
        )
        for number in range(6)
    ]
    assert [(one.what, one.slow[0].communicator.name) for one in slow_places(many)] == [(What.COMMUNICATOR, "0")]


@pytest.mark.parametrize("seed", range(20))
def test_fifty_healthy_gangs_name_nothing(seed: int) -> None:
    for one in range(50):
        assert named(lambda *_seen: 1.0, 1000 * seed + one) == []


def test_what_does_not_last_or_is_the_same_everywhere_names_nothing() -> None:
    def burst(purpose: str, _nodes: frozenset[str], place: int | None, at: float) -> float:
        return 4.0 if purpose == "dp" and place == 3 and at < 0.5 else 1.0

    assert named(burst) == []
    assert named(lambda *_seen: 5.0) == []
    assert named(lambda purpose, *_seen: 5.0 if purpose == "dp" else 1.0) == [], "another use of the network"


def test_few_peers_or_few_collectives_show_nothing() -> None:
    def rail(purpose: str, _nodes: frozenset[str], place: int | None, _at: float) -> float:
        return 9.0 if purpose == "dp" and place == 0 else 1.0

    few = [one for one in mesh(rail) if one.name in ("rail 0 of 0", "rail 1 of 0", "rail 2 of 0")]
    assert slow_places(few) == []
    short = [
        Communicator(one.name, one.members, {kind: seconds[1:] for kind, seconds in one.seconds.items()})
        for one in mesh(rail)
    ]
    assert slow_places(short) == []
    assert slow_places([]) == []
