"""Which gangs save, why, and before which step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_agent.wire import OrderState, SaveOrder
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.save_steps import step_ahead, wanted
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.operator import MoveRequest
from understudy_controlplane.fleet.saving import SaveCause, SaveCost, SaveRequest, SavingGang, WantedSave

JOB = b.job(job_id=7, nodes=["n1", "n2"])
GANG = SavingGang(
    Attempt(JOB.slurm.restart_count),
    world_size=2,
    ranks=2,
    asked=100,
    asked_at=b.NOW - 1,
    step_seconds=0.5,
    own_every=500,
    margin_seconds=8,
)
COST = SaveCost(seconds=30, write_seconds=40, mtbf_seconds=11_135, best_seconds=798)
ASKED = SaveRequest(3, "before the power is switched off", "alice", b.NOW - 2)
MOVE = MoveRequest(4, ("n1",), "firmware", "alice", b.NOW - 5, at_checkpoint=True)


def orders(
    gang: SavingGang = GANG,
    request: SaveRequest | None = None,
    cost: SaveCost | None = None,
    job: Any = JOB,
    **values: Any,
) -> list[WantedSave]:
    snapshot = b.snapshot(jobs=[job], **values)
    return list(wanted(snapshot, {7: gang}, {7: request} if request else {}, {job.key: cost} if cost else {}))


def test_the_step_is_further_than_any_rank_gets_before_the_order_has_reached_all() -> None:
    assert step_ahead(GANG, b.NOW) == 100 + 1 + (8 + 1) * 2
    assert step_ahead(replace(GANG, step_seconds=600), b.NOW) == 102


@pytest.mark.parametrize("mode", list(Mode))
def test_a_persons_request_is_carried_out_in_every_mode_and_during_a_pause(mode: Mode) -> None:
    [one] = orders(request=ASKED, mode=mode, paused="by bob")
    assert (one.cause, one.request, one.every) == (SaveCause.REQUEST, 3, 0)
    assert one.why == "alice: before the power is switched off"


@pytest.mark.parametrize(
    "changes",
    [{"ranks": 1}, {"settled": False}, {"step_seconds": None}, {"not_before": b.NOW + 1}, {"attempt": Attempt(9)}],
)
def test_a_gang_that_cannot_agree_now_is_ordered_nothing(changes: dict[str, Any]) -> None:
    assert orders(replace(GANG, **changes), request=ASKED) == []


def test_a_job_that_did_not_ask_for_understudy_is_ordered_nothing() -> None:
    assert orders(request=ASKED, job=b.job(job_id=7, nodes=["n1", "n2"], managed=False)) == []


def test_a_gang_that_leaves_nodes_at_its_next_checkpoint_saves_for_it_once() -> None:
    moves = {JOB.key: MOVE}
    [one] = orders(mode=Mode.ACT, moves=moves)
    assert one.cause is SaveCause.MOVE
    assert orders(replace(GANG, saves_at=b.NOW - 1), mode=Mode.ACT, moves=moves) == []
    assert orders(mode=Mode.ACT, moves={JOB.key: replace(MOVE, checkpoint_at=b.NOW - 1)}) == []
    assert orders(mode=Mode.ACT, moves={JOB.key: replace(MOVE, at_checkpoint=False)}) == []
    assert orders(mode=Mode.OBSERVE, moves=moves) == []
    assert orders(mode=Mode.ACT, moves=moves, paused_jobs={JOB.key: "by alice"}) == []


def ending(seconds: float) -> Any:
    """A job that its time limit ends then."""
    return b.job(job_id=7, nodes=["n1", "n2"], time_limit_minutes=60, start_at=int(b.NOW + seconds - 3600))


def test_a_job_saves_once_before_its_time_limit() -> None:
    lead = 60 + 2 * 40 + 8 + 2 * 0.5
    steady = replace(COST, best_seconds=250)
    assert orders(cost=steady, job=ending(lead + 2), mode=Mode.ACT) == []
    [one] = orders(cost=steady, job=ending(lead - 2), mode=Mode.ACT)
    assert one.cause is SaveCause.TIME_LIMIT
    just_saved = replace(GANG, saves_at=b.NOW - 20)
    assert orders(just_saved, cost=steady, job=ending(lead - 22), mode=Mode.ACT) == []


def test_a_better_interval_is_ordered_where_it_differs_by_more_than_a_quarter() -> None:
    [one] = orders(cost=COST, mode=Mode.ACT)
    assert (one.cause, one.every) == (SaveCause.INTERVAL, 1596)
    assert one.why == "every 1596 steps from now on instead of 500 steps"
    assert orders(replace(GANG, own_every=1400), cost=COST, mode=Mode.ACT) == []
    assert orders(replace(GANG, ordered_every=1596), cost=COST, mode=Mode.ACT) == []
    assert orders(cost=COST, mode=Mode.APPROVE) == []
    assert orders(cost=replace(COST, seconds=None, best_seconds=None), mode=Mode.ACT) == []


def test_another_order_keeps_the_interval_that_was_ordered() -> None:
    order = SaveOrder(7, 0, 0, 1000, 3, 90, OrderState.WITHDRAWN)
    [one] = orders(replace(GANG, ordered_every=1596, order=order), request=ASKED)
    assert one.every == 1596
