"""How long the choice of a spare takes for a gang of 2,048 nodes, and how many pairs cross domains after a swap.

A fleet of 2,048 nodes: racks of 16 with two leaf switches (rails) each, pods of 8 racks. 95 % of the nodes run gangs of
16 to 128 nodes, which Slurm placed in order; the spares are spread over the racks. 40 nodes fail one after the other;
no spare comes back. A pair are two nodes with ranks that are neighbours in a group of the gang; it crosses once for
each of leaf switches, rack and pod that the two do not share. Counted are the pairs of the replaced seat, beyond those
of the node that was there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from tests.bench.result import Result, Size, result
from understudy_controlplane.decide.placement import Layout, place
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology, merged
from understudy_wire.parallelism import ANY, Parallelism

NODES, RACK, POD_RACKS, GPUS = 2048, 16, 8, 8
SPARES = NODES // 20
FAILURES = 40
ROUNDS = 20
SIZES = (16, 32, 64, 128)

Chooser = Callable[[Layout, str, Sequence[str]], str]


def name(number: int) -> str:
    return f"c{number}"


def nodes_of_rack(rack: int) -> tuple[str, ...]:
    return tuple(name(number) for number in range(rack * RACK, (rack + 1) * RACK))


def fleet(more: Mapping[int, tuple[str, ...]]) -> Topology:
    """`more`: further nodes by rack."""
    found: list[Domain] = []
    racks = {rack: (*nodes_of_rack(rack), *more.get(rack, ())) for rack in range(NODES // RACK)}
    for rack, nodes in racks.items():
        found.append(Domain(DomainKind.RACK, f"r{rack}", nodes))
        found += [Domain(DomainKind.SWITCH, f"leaf{rack}{rail}", nodes) for rail in "ab"]
    for pod in range(NODES // RACK // POD_RACKS):
        inside = [node for rack in range(pod * POD_RACKS, (pod + 1) * POD_RACKS) for node in racks[rack]]
        found.append(Domain(DomainKind.POD, f"p{pod}", tuple(inside)))
    return merged(found)


def gangs(used: Sequence[str], chance: random.Random) -> list[Layout]:
    found, at = [], 0
    while at + SIZES[-1] <= len(used):
        size = chance.choice(SIZES)
        found.append(Layout(tuple(used[at : at + size]), size * GPUS, Parallelism(tensor=GPUS)))
        at += size
    return found


def crossing(topology: Topology, layout: Layout, seat: int, node: str) -> int:
    """Domains that the pairs of this seat cross with this node in it."""
    weights = layout.traffic_of(seat)
    background = ANY * GPUS / (len(layout.seats) - 1)
    crossed = 0
    for other, weight in enumerate(weights):
        if weight > background + 1e-3 and other != seat:
            for kind in (DomainKind.SWITCH, DomainKind.RACK, DomainKind.POD):
                shared = set(topology.names_of(node, kind)) & set(topology.names_of(layout.seats[other], kind))
                crossed += not shared
    return crossed


def crossed_after_swaps(topology: Topology, choose: Chooser, seed: int) -> float:
    """Added pairs of a swap, in the mean of one round."""
    chance = random.Random(seed)  # noqa: S311 - failures of a benchmark
    spares = sorted({name(i * NODES // SPARES + chance.randrange(RACK)) for i in range(SPARES)}, key=natural)
    used = [name(number) for number in range(NODES) if name(number) not in set(spares)]
    layouts = gangs(used, chance)
    added = 0
    for _ in range(FAILURES):
        number = chance.randrange(len(layouts))
        layout = layouts[number]
        seat = chance.randrange(len(layout.seats))
        taken = choose(layout, layout.seats[seat], spares)
        added += crossing(topology, layout, seat, taken) - crossing(topology, layout, seat, layout.seats[seat])
        spares.remove(taken)
        seats = (*layout.seats[:seat], taken, *layout.seats[seat + 1 :])
        layouts[number] = Layout(seats, layout.world, layout.sizes)
    return added / FAILURES


def milliseconds(rounds: int) -> list[float]:
    """Times of a gang on all nodes, with spares in every rack but the last ones."""
    everything = tuple(name(number) for number in range(NODES))
    spares = [f"s{number}" for number in range(SPARES)]
    layout = Layout(everything, NODES * GPUS, Parallelism(tensor=GPUS, pipeline=8))
    found = []
    for seed in range(rounds):
        topology = fleet(
            {number: (spare,) for number, spare in enumerate(spares)}
        )  # as after a change: nothing is kept
        begun = time.perf_counter()
        place(topology, layout, [everything[seed * 100]], spares, lambda _: ())
        found.append((time.perf_counter() - begun) * 1000)
    return found


def measure(size: Size) -> list[Result]:
    rounds = size.of(ROUNDS, 2)
    topology = fleet({})
    chance = random.Random(1)  # noqa: S311
    choosers: dict[str, Chooser] = {
        "understudy": lambda layout, left, spares: place(topology, layout, [left], spares, lambda _: ()).taken[0],
        "by_name": lambda _layout, _left, spares: spares[0],
        "random": lambda _layout, _left, spares: chance.choice(spares),
    }
    added = {
        who: [crossed_after_swaps(topology, choose, seed) for seed in range(rounds)] for who, choose in choosers.items()
    }
    rivals = {who: values for who, values in added.items() if who != "understudy"}
    times = milliseconds(rounds)
    return [
        result("placement_milliseconds_2048", "ms", times, {}, more_is_better=False),
        result("cross_domain_pairs", "pairs added by a swap", added["understudy"], rivals, more_is_better=False),
    ]
