"""A reservation that kept a node for its validation is deleted when it is left over."""

from __future__ import annotations

import pytest

from tests import builders as b
from tests.decide.test_approvals import MOVE, RESET
from understudy_controlplane.decide.repair_cycle import due
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.recovery import Plan, Recovery, RecoveryStatus


@pytest.mark.parametrize(("node", "plan", "left"), [("n3", MOVE, True), ("n1", MOVE, False), ("n1", RESET, False)])
def test_also_of_a_node_that_is_promised_to_a_gang(node: str, plan: Plan, left: bool) -> None:
    """slurmctld has forgotten in a crash that it was deleted, and the gang cannot start there. A recovery that works on
    the node itself may need it.
    """
    recovery = Recovery(7, plan, RecoveryStatus.RUNNING, b.NOW - 60, ())
    snapshot = b.snapshot(recoveries=(recovery,), reservations=b.kept(node))
    found = [one.signal for one in due(snapshot, snapshot.nodes[node], (), b.config())]
    assert (Signal.HOLD_LEFT in found) is left
