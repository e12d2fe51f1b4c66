"""What the test of a GPU between steps says of a rank that is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.steps import Durations, StepTable
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_wire.ranks import Training

SLOW = 2


def gang(ratio: float = 1.0, *, step: int = 80, tested: int = 16, at_rank: int = SLOW) -> StepTable:
    """Rank 2 is 25 % slower from step 20 on. So many ranks were tested after `step`; one took `ratio` times as long."""
    times = np.random.default_rng(1).normal(1.0, 0.005, (16, 100))
    times[SLOW, 20:] *= 1.25
    seconds = {rank: 0.0002 * (ratio if rank == at_rank else 1.0) for rank in range(tested)}
    training = {rank: Training(compute_step=step, compute_seconds=one) for rank, one in seconds.items()}
    return replace(b.step_table(times.tolist()), training=training, durations=Durations(startup=1.0))


def found(table: StepTable, *, confirms: bool = False) -> Finding:
    record = b.record("n3", NodeState.SUSPECT, suspicions=b.suspected(SuspicionCause.SLOW, since=b.NOW - 60))
    nodes = [b.node(f"n{number}", gpus=(b.gpu(0),)) for number in range(1, 17)]
    seen = b.snapshot(
        *nodes,
        b.node("n3", record=record, gpus=(b.gpu(0),)),
        jobs=[b.job()],
        tables={b.job().key: table},
        checkpointed_at={b.job().key: b.NOW},
    )
    policy = Straggler(compute_test_confirms=confirms)
    (one,) = (one for one in straggler(seen, policy, probed=False) if one.signal is not Signal.CLEAN)
    return one


def test_a_slow_gpu_is_the_reason_and_confirms_nothing_by_default() -> None:
    one = found(gang(1.24))
    assert one.signal is Signal.STRAGGLER_SUSPECTED
    assert "cause compute: its GPU takes 1.24 times as long for the same multiplication" in one.summary
    assert one.evidence.shown()["compute_test_ratio"] == pytest.approx(1.24)


def test_it_confirms_where_the_site_wants_that() -> None:
    assert found(gang(1.24), confirms=True).signal is Signal.STRAGGLER_CONFIRMED


def test_a_gpu_that_is_as_fast_as_others_is_no_reason() -> None:
    one = found(gang(1.01), confirms=True)
    assert one.signal is Signal.STRAGGLER_SUSPECTED
    assert "cause unknown: no second signal; its GPU is as fast as those of other ranks" in one.summary


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (gang(1.24, step=10), "it was tested before it became slow"),
        (gang(1.24, tested=5, at_rank=7), "no other rank matters"),
        (gang(1.24, tested=3), "too few were tested"),
        (gang(1.07), "neither slow nor as fast"),
        (replace(gang(1.24), training={}), "there was no test"),
    ],
)
def test_what_says_nothing_of_the_gpu(table: StepTable, why: str) -> None:
    one = found(table, confirms=True)
    assert one.signal is Signal.STRAGGLER_SUSPECTED, why
    assert "multiplication" not in one.summary
    if why != "no other rank matters":
        assert "as fast" not in one.summary


def test_ranks_that_were_tested_after_another_step_are_no_measure() -> None:
    table = gang(1.24)
    later = {rank: replace_step(one, 90) for rank, one in table.training.items() if rank != SLOW}
    assert found(replace(table, training={**table.training, **later})).evidence.shown()["compute_test_ratio"] is None


def replace_step(one: Training, step: int) -> Training:
    return Training(compute_step=step, compute_seconds=one.compute_seconds)


def with_sums(slow_group: float, nodes: int = 8) -> StepTable:
    """Two ranks on each node, which do an all-reduce with each other."""
    table = gang(1.0)
    names = tuple(f"n{1 + rank // 2}" for rank in range(16))
    training = {
        rank: replace_sum(
            one, 0.001 * (slow_group if names[rank] == names[SLOW] else 1.0) if rank < 2 * nodes else None
        )
        for rank, one in table.training.items()
    }
    return replace(table, nodes=names, training=training)


def replace_sum(one: Training, seconds: float | None) -> Training:
    return Training(compute_step=one.compute_step, compute_seconds=one.compute_seconds, all_reduce_seconds=seconds)


def test_an_all_reduce_that_is_slow_on_its_node_is_the_reason_where_its_gpu_is_as_fast() -> None:
    one = found_on("n2", with_sums(1.4))
    assert one.signal is Signal.STRAGGLER_SUSPECTED
    assert "cause all_reduce: its group takes 1.40 times as long for the same all-reduce" in one.summary
    assert one.evidence.shown()["all_reduce_test_ratio"] == pytest.approx(1.4)


@pytest.mark.parametrize(("table", "why"), [(with_sums(1.02), "as fast"), (with_sums(1.4, nodes=3), "too few nodes")])
def test_an_all_reduce_that_says_nothing_is_not_mentioned(table: StepTable, why: str) -> None:
    assert "all-reduce" not in found_on("n2", table).summary, why


def found_on(node: str, table: StepTable) -> Finding:
    nodes = [b.node(f"n{number}", gpus=(b.gpu(0),)) for number in range(1, 9)]
    seen = b.snapshot(*nodes, jobs=[b.job()], tables={b.job().key: table})
    policy = Straggler(compute_test_confirms=True)
    (one,) = (one for one in straggler(seen, policy, probed=False) if one.signal is not Signal.CLEAN)
    assert one.node == node
    return one
