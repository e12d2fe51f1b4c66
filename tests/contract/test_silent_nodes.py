"""What Slurm shows of nodes that do not answer. Clusters of their own: by default it takes minutes to notice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.slurm_sides import REAL_SIDES, FakeSide, RealSide, Side, node_of, until
from tests.testbed.cluster import SlurmCluster
from understudy_controlplane.fleet.custody import Holder, custody_in, in_slurm
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.slurm import SLURM_USERS, Service

NEW = ("fake of 23.02", "26.05-cli")
OWN, OTHERS = "understudy: xid.79: lost", "board swap"
PATIENCE_SECONDS = 400


@pytest.fixture(
    params=["fake", NEW[0], *(pytest.param(name, marks=pytest.mark.cluster) for name in ("22.05-cli", NEW[1]))]
)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    if request.param not in REAL_SIDES:
        fake = FakeSide()
        fake.fake.adds_to_reasons = request.param in NEW
        yield fake
        return
    installation, gateway = REAL_SIDES[request.param]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-")))
        directory.chmod(0o755)
        cluster = SlurmCluster(directory, 4, extra_lines=("SlurmdTimeout=6",), slurm=installation)
        yield RealSide(stack.enter_context(cluster), stack.enter_context(gateway(cluster)))


def test_a_node_that_falls_silent_keeps_the_reason_that_another_one_gave(
    side: Side, request: pytest.FixtureRequest
) -> None:
    side.slurm.drain_node("n2", OWN)
    side.slurm.drain_node("n3", OTHERS)
    side.slurm.down_nodes(["n4"], OWN)
    drained = node_of(side, "n2")
    silent = ("n1", "n2", "n3", "n4")
    for name in silent:
        side.kill_node(name)
    until(side, lambda: not any(node_of(side, one).responding for one in silent), "Slurm notices it", PATIENCE_SECONDS)
    assert node_of(side, "n1").service is not Service.USABLE
    until(side, lambda: all(node_of(side, one).down for one in silent), "Slurm sets them down", PATIENCE_SECONDS)

    n1, n2, n3, n4 = (node_of(side, one) for one in silent)
    assert (n1.reason, n1.reason_user in SLURM_USERS, in_slurm(n1).holder) == ("Not responding", True, Holder.FREE)
    adds = request.node.callspec.params["side"] in NEW
    more = " : Not responding" if adds else ""
    assert (n2.reason, n2.draining) == (OWN + more, True)
    given = NodeRecord(
        "n2",
        NodeState.QUARANTINED,
        drained_at=1.0,
        drain_user=drained.reason_user,
        drain_reason_at=drained.reason_at,
    )
    assert custody_in(n2, given).holder is Holder.UNDERSTUDY
    assert adds or (n2.reason_user, n2.reason_at) == (drained.reason_user, drained.reason_at)
    assert (n3.reason, n3.draining, in_slurm(n3).holder) == (OTHERS + more, True, Holder.ADMINISTRATOR)
    assert n4.reason == OWN, "it was down before"

    for name in silent:
        side.start_node(name)
    until(side, lambda: all(node_of(side, one).responding for one in silent), "they are heard again", PATIENCE_SECONDS)
    assert node_of(side, "n3").reason == OTHERS + more
