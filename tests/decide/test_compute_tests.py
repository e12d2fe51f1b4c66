"""When a gang with a slow rank tests its GPUs between steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.compute_tests import (
    AGAIN_FACTOR,
    MARGIN_SECONDS,
    MULTIPLICATIONS,
    pays,
    price_seconds,
    wanted,
)
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_wire.ranks import Training

MULTIPLICATION_SECONDS = 0.0003
PRICE = MULTIPLICATIONS * MULTIPLICATION_SECONDS


def gang(tested: int = 8) -> StepTable:
    """Steps of a second; the last that a rank has ended is 99. The slowest GPU has the price."""
    training = {
        rank: Training(compute_step=0, compute_seconds=MULTIPLICATION_SECONDS / (1 if rank == 2 else 1.5))
        for rank in range(8)
        if abs(rank - 2) < tested
    }
    return replace(b.step_table(np.ones((8, 100)).tolist()), training=training)


def slow(lost_seconds: float = 10.0, node: str = "n2") -> Finding:
    found = Finding(Signal.STRAGGLER_SUSPECTED, "straggler.self_time", node, b.NOW, "slow", job=b.job().key)
    return replace(found, lost_seconds=lost_seconds)


def seen(table: StepTable | None = None, **values: Any) -> Snapshot:
    nodes = [b.node(f"n{number}") for number in range(1, 9)]
    tables = {b.job().key: gang() if table is None else table}
    return b.changed(b.snapshot(*nodes, jobs=[b.job()], tables=tables), **values)


def orders(snapshot: Snapshot, *findings: Finding, lost: float = 0.0, ordered: int | None = None) -> list[int]:
    """After which steps."""
    job = b.job().key
    before = {(job, "n2"): lost}
    return [one.order.step for one in wanted(snapshot, findings, before, {} if ordered is None else {job: ordered})]


def test_the_price_is_what_the_gang_waits_for_its_slowest_gpu() -> None:
    assert price_seconds(gang()) == pytest.approx(PRICE)


def test_a_gang_whose_ranks_do_not_test_themselves_is_ordered_nothing() -> None:
    assert price_seconds(gang(0)) is None
    assert orders(seen(gang(0)), slow()) == []
    assert orders(seen(gang(1)), slow()) == [], "too few for a comparison"


def test_it_is_tested_when_the_slowness_has_cost_as_much_as_a_test() -> None:
    assert orders(seen(), slow(0.9 * PRICE)) == []
    assert orders(seen(), slow(1.1 * PRICE)) == [99 + MARGIN_SECONDS]


def test_and_again_when_the_slowness_has_cost_twice_as_much() -> None:
    assert orders(seen(), slow(1.9 * 7.0), lost=7.0) == []
    assert orders(seen(), slow(2.1 * 7.0), lost=7.0) != []
    assert orders(seen(), slow(1.9 * 7.0, "n3"), lost=7.0) != [], "another node was not tested for"


def test_tests_never_cost_more_than_the_slowness() -> None:
    """The price rises by a thousandth at a time, from nothing to a day of slowness."""
    tests, last = 0, 0.0
    for lost in (0.001 * PRICE * 1.01**power for power in range(2500)):
        if pays(lost, PRICE, last):
            tests, last = tests + 1, lost
        assert tests * PRICE <= lost or tests == 0
    assert 20 < tests < 60 and AGAIN_FACTOR == 2.0, "and they are few"


def test_slowness_that_has_cost_less_than_at_the_last_test_is_another_one() -> None:
    assert pays(3.0, PRICE, 50.0)
    assert not pays(49.0, PRICE, 50.0), "the ratio of the slow rank varies a little"


def test_one_test_at_a_time() -> None:
    assert orders(seen(), slow(), ordered=107) == [], "the gang has not got there"
    assert orders(seen(), slow(), ordered=99) != []
    assert len(orders(seen(), slow(), slow(20.0, "n3"))) == 1, "all ranks do it"


@pytest.mark.parametrize(
    "snapshot",
    [
        seen(mode=Mode.OBSERVE),
        seen(paused="by an operator"),
        seen(paused_jobs={b.job().key: "by its owner"}),
        seen(jobs={b.job().key: replace(b.job(), managed=False)}),
        seen(tables={}),
    ],
)
def test_where_nothing_may_be_ordered(snapshot: Snapshot) -> None:
    assert orders(snapshot, slow()) == []


def test_the_order_is_for_this_attempt() -> None:
    table = replace(gang(), attempt=Attempt(2, 3))
    (one,) = wanted(seen(table), [slow()], {}, {})
    assert (one.order.restart_count, one.order.launch, one.order.user_id) == (2, 3, b.job().slurm.user_id)
