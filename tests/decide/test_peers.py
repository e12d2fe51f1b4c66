"""With which nodes a node's network is tested: idle ones of each distance, and none where the site does not want it."""

from __future__ import annotations

from typing import Any

from tests import builders as b
from understudy_controlplane.decide.peers import peers_of
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology

ON = {"run_stages": "always", "stages": {"network": {"enabled": True}}}


def fleet(busy: tuple[str, ...] = ()) -> Snapshot:
    """n1 to n12: racks of three, pods of two racks."""
    names = [f"n{number}" for number in range(1, 13)]
    nodes = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED" if name in busy else "IDLE")) for name in names]
    racks = [Domain(DomainKind.RACK, f"r{i}", tuple(names[3 * i : 3 * i + 3])) for i in range(4)]
    pods = [Domain(DomainKind.POD, f"p{i}", tuple(names[6 * i : 6 * i + 6])) for i in range(2)]
    return b.snapshot(*nodes, topology=Topology((*racks, *pods)))


def peers(snapshot: Snapshot, name: str = "n1", hours: float = 0.0, **validation: Any) -> tuple[str, ...]:
    config = b.config(validation={**ON, **validation})
    return peers_of(snapshot, snapshot.nodes[name], config, hours)


def test_one_of_its_rack_one_of_its_pod_and_one_of_another() -> None:
    assert peers(fleet()) == ("n2", "n4", "n7")
    assert peers(fleet(), "n8") == ("n9", "n10", "n1")


def test_nodes_in_use_are_left_alone_and_others_of_the_same_distance_take_part() -> None:
    assert peers(fleet(busy=("n2", "n3", "n4"))) == ("n5", "n7", "n6")
    assert peers(fleet(busy=tuple(f"n{number}" for number in range(2, 13)))) == ()


def test_none_where_the_site_does_not_test_the_network() -> None:
    assert peers(fleet(), stages={}) == ()
    assert peers(fleet(), run_stages="burn_in") == ()
    assert peers(fleet(), run_stages="burn_in", hours=48.0) != ()
    assert peers(fleet(), run_stages="never", hours=48.0) == ()
