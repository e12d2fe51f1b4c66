"""What Slurm shows of nodes that do not answer. Clusters of their own: by default it takes minutes to notice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.slurm_sides import REAL_SIDES, FakeSide, RealSide, Side, node_of, until
from tests.testbed.cluster import SlurmCluster

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
    assert not node_of(side, "n1").usable
    until(side, lambda: all(node_of(side, one).down for one in silent), "Slurm sets them down", PATIENCE_SECONDS)

    n1, n2, n3, n4 = (node_of(side, one) for one in silent)
    assert (n1.reason, n1.reason_user in ("slurm", "root"), n1.lost) == ("Not responding", True, True)
    adds = request.node.callspec.params["side"] in NEW
    more = " : Not responding" if adds else ""
    assert (n2.reason, n2.draining, n2.reason_added_to) == (OWN + more, True, adds)
    assert adds or (n2.reason_user, n2.reason_at) == (drained.reason_user, drained.reason_at)
    assert (n3.reason, n3.draining, n3.lost) == (OTHERS + more, True, False)
    assert n4.reason == OWN, "it was down before"

    for name in silent:
        side.start_node(name)
    until(side, lambda: all(node_of(side, one).responding for one in silent), "they are heard again", PATIENCE_SECONDS)
    assert node_of(side, "n3").reason == OTHERS + more
