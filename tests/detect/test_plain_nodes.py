"""Rules that look at nodes which are set apart alone find what they would find in a look at all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot

FLAGS = (
    (),
    ("DRAIN",),
    ("FAIL",),
    ("NOT_RESPONDING",),
    ("POWERED_DOWN",),
    ("REBOOT_ISSUED",),
    ("MAINTENANCE",),
    ("INVALID_REG",),
    ("EXTERNAL",),
    ("BLOCKED",),
    ("COMPLETING",),
)
STATES = ("IDLE", "ALLOCATED", "DOWN", "ERROR", "UNKNOWN", "FUTURE")
REASONS = (
    ("", ""),
    ("understudy: xid 79", "root"),
    ("Not responding", "slurm"),
    ("Prolog error", "root"),
    ("bad", "x"),
)
SHOWN = [*product(STATES, FLAGS, REASONS)]


def whole(snapshot: Snapshot) -> Snapshot:
    """All nodes count as set apart."""
    found = replace(snapshot)
    found.__dict__["set_apart"] = tuple(found.nodes.values())  # where it is kept once computed
    return found


def shown(name: str, state: str, flags: tuple[str, ...], reason: tuple[str, str]) -> SlurmNode:
    return b.slurm_node(name, state, flags, *reason)


def fleet(state: NodeState, **changes: object) -> Snapshot:
    nodes = [b.node(f"x{i}", state, shown(f"x{i}", *one)) for i, one in enumerate(SHOWN)]
    nodes += [replace(node, record=replace(node.record, name=f"w{node.name}", weight=7)) for node in nodes[::7]]
    nodes += [replace(one, record=replace(one.record, name=f"o{one.name}"), heard_at=None) for one in nodes[::11]]
    return replace(b.snapshot(*nodes), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", NodeState)
def test_nodes_in_every_state_are_judged_as_if_all_were_looked_at(state: NodeState) -> None:
    snapshot, config = fleet(state), b.config(mode="act")
    found = detect(snapshot, config)
    assert found == detect(whole(snapshot), config)
    assert decide(snapshot, found, config) == decide(whole(snapshot), found, config)


def test_what_is_due_for_a_plain_node_is_found() -> None:
    """A request, a reservation that is left over, and a weight that is to be put back."""
    asked = Request(1, "n1", Verb.HOLD, "for a test", "ops", b.NOW - 5)
    raised = b.node("n3", record=b.record("n3", weight=7, weight_before=1))
    snapshot, config = b.snapshot(raised), b.config(mode="act")
    snapshot = replace(
        snapshot,
        operator=replace(snapshot.operator, requests={"n1": asked}),
        slurm=replace(snapshot.slurm, reservations={**snapshot.slurm.reservations, **b.kept("n2")}),
    )
    assert snapshot.set_apart == (raised,)
    decisions = decide(snapshot, [], config)
    assert {"n1", "n2", "n3"} <= {one.subject for one in decisions}
    assert decisions == decide(whole(snapshot), [], config)


def test_a_plain_fleet_has_no_node_set_apart() -> None:
    assert b.snapshot().set_apart == ()
    assert [one.name for one in b.snapshot(b.node("n3", NodeState.SUSPECT)).set_apart] == ["n3"]
