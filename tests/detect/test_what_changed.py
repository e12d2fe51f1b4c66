"""A gang that is slow as a whole says what is different from its best steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.detect.slow_gang import slow_gang
from understudy_controlplane.detect.what_changed import what_changed
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import Block, Durations, StepTable
from understudy_wire.hardware import Host, Port
from understudy_wire.ranks import Training

NODES = ("n1", "n2", "n3", "n4")
BEST = Block(b.NOW - 9000, 1.0, 0.8, 0.01, NODES, Attempt(0))


def changed(*nodes: NodeView, **now: Any) -> list[str]:
    block = replace(BEST, begun_at=b.NOW - 900, seconds=1.5, **now)
    return what_changed(b.snapshot(*nodes), table(), BEST, block)


def table(blocks: tuple[Block, ...] = ()) -> StepTable:
    made = b.step_table([[0.8] * 100] * 4, nodes=NODES)
    durations = Durations()
    for block in blocks:
        durations = durations.with_block(block)
    return replace(made, durations=durations)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"data_seconds": 0.5}, ["its ranks wait 0.5 s a step for data, where it was 0.01 s"]),
        ({"self_seconds": 1.3}, ["its ranks compute longer, as with more work, lower clocks or another program"]),
        ({}, ["its ranks compute as long as before and wait longer for each other, as with a slow fabric"]),
        ({"self_seconds": 0.0}, []),
    ],
)
def test_by_what_a_step_consists_of(now: dict[str, Any], words: list[str]) -> None:
    assert changed(**now) == words


def test_by_where_it_runs() -> None:
    unknown = {"self_seconds": 0.0}
    (moved, again) = changed(nodes=("n1", "n2", "n3", "n9"), attempt=Attempt(1), **unknown)
    assert moved == "since then it runs on 1 of its 4 nodes (n9) that it did not have"
    assert again.startswith("it was started again since then")
    assert changed(nodes=("n2", "n1", "n3", "n4"), **unknown) == [
        "since then its ranks are in another order on the same nodes"
    ]


def test_by_what_its_nodes_show() -> None:
    hot = b.node("n1", gpus=(b.gpu(0, clock_event_reasons=0x40),))
    slow = [b.node(name, host=Host(io_pressure_percent=60.0)) for name in ("n2", "n3")]
    port = b.node("n4", ports=(Port("mlx5_0", 1, state="ACTIVE", was_active=True, rate_gbps=200, rate_gbps_max=400),))
    found = changed(hot, *slow, port, self_seconds=0.0)
    assert found == [
        "2 of its 4 nodes (n2, n3) wait for storage",
        "1 of its 4 nodes (n1) have throttled clocks",
        "1 of its 4 nodes (n4) have a fabric port that is down, slow or has errors",
    ]


def test_by_versions_that_its_nodes_do_not_all_have() -> None:
    views = [b.node(name, driver_version="580" if name == "n4" else "570") for name in NODES]
    assert changed(*views, self_seconds=0.0) == ["its nodes differ in driver: 570 on 3, 580 on 1"]


def slow() -> StepTable:
    late = [replace(BEST, begun_at=b.NOW - 900 + 150 * i, seconds=1.5, data_seconds=0.5) for i in range(3)]
    return table((BEST, *late))


def test_the_finding_says_since_when_what_it_costs_and_what_is_different() -> None:
    one = slow_gang(slow(), b.snapshot())
    assert one is not None
    assert one.at == b.NOW - 900
    assert (
        "it costs 1.33 rank hours in each hour; what is different: its ranks wait 0.5 s a step for data" in one.summary
    )
    assert one.evidence.shown()["best_at"] == b.NOW - 9000


def test_mfu_is_held_against_what_the_same_gang_had() -> None:
    training = {rank: Training(tokens_per_second=1000.0, flops_per_token=1.978e11) for rank in range(4)}
    views = [b.node(name, gpus=(b.gpu(0, name="NVIDIA H100 80GB HBM3"),)) for name in NODES]
    snapshot: Snapshot = b.snapshot(*views)
    one = slow_gang(replace(slow(), training=training), snapshot)
    assert one is not None
    assert "MFU is 20.0%, and was 30.0%" in one.summary
    assert one.evidence.shown()["mfu_expected"] == pytest.approx(0.3)
