"""The fleet stays in use: what looks like a fault of many nodes, and is none, freezes nothing and uses nothing up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recover.rehearsal import NODES, Rehearsal
from understudy_agent.wire import HardwareEvent, HardwareKind
from understudy_controlplane.fleet.node import NodeState

pytestmark = [pytest.mark.integration, pytest.mark.patient]

HOUR = 3600.0


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path)
    yield made
    made.control_plane.close()


def outage(rehearsal: Rehearsal, node: str, seconds: float = 100.0) -> None:
    """The port of the node is up again after this time."""
    event = HardwareEvent(
        f"boot of {node}", rehearsal.fake.now - seconds, HardwareKind.PORT_OUTAGE, "mlx5_0/1", None, seconds
    )
    rehearsal.control_plane.stores.facts.record(node, [event], rehearsal.clock.now(), lambda _: None)


def test_a_leaf_switch_that_reboots_three_times_a_day_takes_none_of_its_nodes_out(rehearsal: Rehearsal) -> None:
    for _ in range(3):
        for name in NODES:
            outage(rehearsal, name)
        rehearsal.run(HOUR)
    assert {rehearsal.state_of(name) for name in NODES} == {NodeState.IN_SERVICE}
    assert not rehearsal.line.effects
    for _ in range(3):
        outage(rehearsal, "n2")
        rehearsal.run(300)
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED, "a cable is still one"
    assert "n2" not in rehearsal.gang_nodes()
