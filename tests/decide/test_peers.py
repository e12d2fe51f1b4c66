"""Idle nodes of each distance test a node's network, and none if the site does not want it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.peers import Turn, network_is_tested, peers_of, turns
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
    ValidationPlan,
)
from understudy_controlplane.fleet.slurm import SlurmReservation
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


def peers(snapshot: Snapshot, name: str = "n1", **validation: Any) -> tuple[str, ...]:
    config = b.config(validation={**ON, **validation})
    return peers_of(snapshot, snapshot.nodes[name], config)


def test_one_of_its_rack_one_of_its_pod_and_one_of_another() -> None:
    assert peers(fleet()) == ("n2", "n4", "n7")
    assert peers(fleet(), "n8") == ("n9", "n10", "n1")


def test_nodes_in_use_are_left_alone_and_others_of_the_same_distance_take_part() -> None:
    assert peers(fleet(busy=("n2", "n3", "n4"))) == ("n5", "n7", "n6")
    assert peers(fleet(busy=tuple(f"n{number}" for number in range(2, 13)))) == ()


def test_none_where_the_site_does_not_test_the_network() -> None:
    assert peers(fleet(), stages={}) == ()
    assert peers(fleet(), run_stages="burn_in") == ()
    for runs, found in (("burn_in", True), ("always", True), ("never", False)):
        assert network_is_tested(b.config(validation={**ON, "run_stages": runs}), 48.0) is found
    assert not network_is_tested(b.config(validation={**ON, "stages": {}}), 48.0)


# -- nodes that are burnt in side by side --------------------------------------------------------------------------

BURNING, BURNT, TESTING, TESTED = range(4)
STEPS = (StepName.RUN_VALIDATION, StepName.TEST_NETWORK, StepName.AWAIT_PEERS)
INTENDED, DONE, PLANNED = StepStatus.INTENDED, StepStatus.DONE, StepStatus.PLANNED
SO_FAR = {
    BURNING: (INTENDED, PLANNED, PLANNED),
    BURNT: (DONE, PLANNED, PLANNED),
    TESTING: (DONE, INTENDED, PLANNED),
    TESTED: (DONE, DONE, PLANNED),
}


def burn_in(name: str, so_far: int, ended_ago: float = 10.0, hours: float = 48.0) -> Recovery:
    """Its burn-in has ended, or ends, so many seconds ago."""
    begun = b.NOW - ended_ago - hours * 3600
    steps = tuple(
        RecoveryStep(i, step, status, 1, begun, b.NOW - ended_ago if status is DONE else None)
        for i, (step, status) in enumerate(zip(STEPS, SO_FAR[so_far], strict=True))
    )
    plan = ValidationPlan(steps=STEPS, nodes=(name,), label=f"{name}-1", hours=hours)
    return Recovery(int(name[1:]), plan, RecoveryStatus.RUNNING, begun, steps)


def rack(*burn_ins: Recovery, idle: Sequence[str] = ()) -> Snapshot:
    """All nodes are in use, but those that are burnt in and those that are named."""
    burning = [one.plan.nodes[0] for one in burn_ins if one.steps[0].status is not DONE]
    held = [one.plan.nodes[0] for one in burn_ins]
    free = {*held, *idle} - {*burning}
    nodes = [
        b.node(
            name,
            NodeState.VALIDATING if name in held else NodeState.IN_SERVICE,
            slurm=b.slurm_node(name, "IDLE" if name in free else "ALLOCATED"),
        )
        for name in (f"n{number}" for number in range(1, 13))
    ]
    reservations = {
        f"{NODE_HOLD_PREFIX}{name}": SlurmReservation(f"{NODE_HOLD_PREFIX}{name}", (name,), ("root",), frozenset())
        for name in held
    }
    return b.snapshot(*nodes, topology=fleet().topology, recoveries=burn_ins, reservations=reservations)


def turns_of(snapshot: Snapshot, **validation: Any) -> dict[str, Turn]:
    return turns(snapshot, b.config(validation={**ON, **validation}))


def test_nodes_of_one_rack_are_each_others_peers_in_rounds() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    found = turns_of(rack(*(burn_in(name, BURNT) for name in names)))
    meeting = {name: one.peers for name, one in found.items() if not one.waits}
    taking_part = [node for name, peers in meeting.items() for node in (name, *peers)]
    assert len(meeting) >= 2
    assert len(taking_part) == len(set(taking_part)), "no node is in two tests"
    assert set(taking_part) <= set(names)
    assert all(len(peers) == 3 for peers in meeting.values())


def test_all_have_had_their_turn_after_some_rounds_whatever_the_limit() -> None:
    names = [f"n{number}" for number in range(1, 10)]
    for limit in (1, 4):
        so_far = dict.fromkeys(names, BURNT)
        for _ in names:
            found = turns_of(rack(*(burn_in(*one) for one in so_far.items())), network_tests_at_once_max=limit)
            begun = [name for name, one in found.items() if so_far[name] == BURNT and not one.waits]
            assert len(begun) <= limit
            so_far |= dict.fromkeys(begun, TESTED)
        assert set(so_far.values()) == {TESTED}
        assert {one.waits for one in turns_of(rack(*(burn_in(*one) for one in so_far.items()))).values()} == {""}


def test_a_test_under_way_keeps_its_node_and_its_peers_out_of_others() -> None:
    (before, *_) = turns_of(rack(burn_in("n1", TESTING), *(burn_in(f"n{i}", BURNT) for i in range(2, 8)))).values()
    assert not before.waits
    found = turns_of(rack(burn_in("n1", TESTING), *(burn_in(f"n{i}", BURNT) for i in range(2, 5))))
    assert {name: bool(one.waits) for name, one in found.items()} == {"n1": False, "n2": True, "n3": True, "n4": True}


@pytest.mark.parametrize(
    ("last", "waits"),
    [
        (burn_in("n2", BURNING, ended_ago=-600), "the burn-in of n2 ends soon"),
        (burn_in("n2", BURNING, ended_ago=600), "the burn-in of n2 ends soon"),
        (burn_in("n2", BURNING, ended_ago=-7200), ""),
        (burn_in("n2", BURNT), ""),
    ],
)
def test_a_node_waits_for_one_whose_burn_in_ends_soon_and_not_for_one_that_has_just_begun(
    last: Recovery, waits: str
) -> None:
    assert turns_of(rack(burn_in("n1", BURNT), last))["n1"].waits == waits


def test_a_node_that_was_tested_stays_until_the_others_are_and_for_a_limited_time() -> None:
    assert turns_of(rack(burn_in("n1", TESTED), burn_in("n2", BURNT)))["n1"].waits == "n2 may need it as a peer"
    assert turns_of(rack(burn_in("n1", TESTED), burn_in("n2", TESTED)))["n1"] == Turn(tested=True)
    assert turns_of(rack(burn_in("n1", TESTED, ended_ago=3601), burn_in("n2", BURNT)))["n1"] == Turn(tested=True)
    late = rack(burn_in("n1", BURNT, ended_ago=3601), burn_in("n2", BURNING, ended_ago=3000))
    assert turns_of(late)["n1"] == Turn()


def test_a_node_that_has_left_slurm_is_no_peer() -> None:
    assert set(turns_of(rack(burn_in("n1", BURNT), burn_in("n99", BURNT)))) == {"n1"}


def test_a_node_that_has_waited_too_long_is_tested_with_those_that_are_free() -> None:
    """Here the job of the last test does not end on n2."""
    late = rack(burn_in("n1", BURNT, ended_ago=5401), burn_in("n2", TESTING))
    assert turns_of(late)["n1"] == Turn()
    assert turns_of(rack(burn_in("n1", BURNT, ended_ago=5300), burn_in("n2", TESTING)))["n1"].waits


def test_idle_nodes_of_other_pods_take_part_as_well() -> None:
    found = turns_of(rack(*(burn_in(f"n{i}", BURNT) for i in range(1, 4)), idle=("n5", "n12")))
    assert found["n1"].peers == ("n2", "n5", "n12")
    assert turns_of(rack(burn_in("n1", BURNT), idle=("n12",)))["n1"].peers == ("n12",)
    assert turns_of(rack(burn_in("n1", BURNT)))["n1"] == Turn(), "its test says that there is no peer"
