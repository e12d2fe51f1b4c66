"""Gangs save for a reason, and before a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Mode, SignalKind, Signals
from understudy_controlplane.decide.save_steps import (
    WARNED_PAUSE_SECONDS,
    WARNED_SECONDS_MAX,
    step_ahead,
    wanted,
)
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.operator import MoveRequest
from understudy_controlplane.fleet.saving import SaveCause, SaveCost, SaveRequest, SavingGang, WantedSave
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.topology import Domain, DomainKind, merged
from understudy_wire.ranks import OrderState, SaveOrder

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
WARN = Signals.model_validate({"effects": {"leak": "warn"}})
MOVE = MoveRequest(4, ("n1",), "firmware", "alice", b.NOW - 5, b.job().key.submit_at, at_checkpoint=True)


def orders(
    gang: SavingGang = GANG,
    request: SaveRequest | None = None,
    cost: SaveCost | None = None,
    job: Any = JOB,
    policy: Signals = WARN,
    **values: Any,
) -> list[WantedSave]:
    snapshot = b.snapshot(jobs=[job], **values)
    requests, costs = {7: request} if request else {}, {job.key: cost} if cost else {}
    return list(wanted(snapshot, {7: gang}, requests, costs, policy))


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


@pytest.mark.parametrize("mode", list(Mode))
def test_ranks_that_no_longer_save_together_are_ordered_to_again_in_every_mode_and_during_a_pause(mode: Mode) -> None:
    """The control plane's order has split them, and none of their checkpoints is complete until they agree again. Also
    of a job whose owner has opted out since.
    """
    newest = SaveOrder(7, 0, 0, 1000, 4, 90, OrderState.VALID, 250)
    for gang in (replace(GANG, order=newest), replace(GANG, ordered_every=250)):  # order None: another process made it
        [one] = orders(replace(gang, split=True), mode=mode, paused="by bob")
        assert (one.cause, one.step, one.every) == (SaveCause.SPLIT, step_ahead(GANG, b.NOW), 250)
        assert one.why == "a rank did not learn in time that an order to save counts, and does not save with the others"
        opted_out = b.job(job_id=7, nodes=["n1", "n2"], managed=False)
        assert [one.cause for one in orders(replace(gang, split=True), mode=mode, job=opted_out)] == [SaveCause.SPLIT]


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


def test_a_job_that_was_suspended_saves_before_its_time_limit_as_slurm_shows_it() -> None:
    """A suspension puts it off: by half an hour here."""
    job, end_at = ending(-1700), int(b.NOW + 100)
    steady = replace(COST, best_seconds=250)
    [one] = orders(cost=steady, job=replace(job, slurm=replace(job.slurm, end_at=end_at)), mode=Mode.ACT)
    assert (one.cause, one.why) == (SaveCause.TIME_LIMIT, "Slurm ends it in 100 s")
    later = replace(job, slurm=replace(job.slurm, end_at=end_at + 9000))
    assert orders(cost=steady, job=later, mode=Mode.ACT) == []


@pytest.mark.parametrize("ahead", [-3600.0, 40.0, 3600.0])
def test_slurmctlds_clock_shows_how_much_time_a_job_has_left(ahead: float) -> None:
    lead = 60 + 2 * 40 + 8 + 2 * 0.5
    steady = replace(COST, best_seconds=250)
    clocks: dict[str, Any] = {"mode": Mode.ACT, "ahead_seconds": ahead}
    assert orders(cost=steady, job=ending(lead + 2 + ahead), **clocks) == []
    [one] = orders(cost=steady, job=ending(lead - 2 + ahead), **clocks)
    assert one.cause is SaveCause.TIME_LIMIT


def test_a_job_that_slurm_preempts_saves_in_its_grace_time() -> None:
    """Slurm shows that it ends earlier than its time limit."""
    preempted = replace(JOB, slurm=replace(JOB.slurm, time_limit_minutes=600, start_at=int(b.NOW) - 60))
    assert orders(job=preempted, mode=Mode.APPROVE) == []
    in_grace = replace(preempted, slurm=replace(preempted.slurm, end_at=int(b.NOW) + 60))
    [one] = orders(job=in_grace, mode=Mode.APPROVE)
    assert (one.cause, one.why) == (SaveCause.TIME_LIMIT, "Slurm ends it in 60 s")
    assert orders(replace(GANG, saves_at=b.NOW - 1), job=in_grace, mode=Mode.APPROVE) == [], "once"


RACKS = merged([Domain(DomainKind.RACK, "r1", ("n2", "n3")), Domain(DomainKind.RAIL, "0", ("n1", "n2"))])


def leak(*targets: str, at: float = b.NOW - 5) -> SiteSignal:
    return SiteSignal("bms", "k", SignalKind.LEAK, targets, "wet floor", 7, at, b.NOW + 600)


def warned(*signals: SiteSignal, gang: SavingGang = GANG, **values: Any) -> list[WantedSave]:
    fixed: dict[str, Any] = {"mode": Mode.APPROVE, "topology": RACKS, "domains": RACKS.failing_together}
    return orders(gang, signals=signals, **fixed | values)


@pytest.mark.parametrize("target", ["n1", "rack r1"])
def test_a_gang_saves_once_for_a_warning_that_names_its_nodes_or_their_domain(target: str) -> None:
    [one] = warned(leak(target))
    assert (one.cause, one.every, one.why) == (SaveCause.WARNING, 0, "bms reports leak: wet floor")
    assert warned(leak(target), gang=replace(GANG, saves_at=b.NOW - 1)) == []


def test_a_warning_of_other_nodes_or_of_what_others_stand_in_for_makes_no_gang_save() -> None:
    assert warned(leak("n3"), leak("rail 0")) == []


def test_no_gang_saves_for_a_signal_that_only_explains_or_while_nothing_is_to_be_done() -> None:
    assert warned(leak("n1"), policy=Signals.model_validate({"effects": {"leak": "explain"}})) == []
    assert warned(leak("n1"), mode=Mode.OBSERVE) == []
    assert warned(leak("n1"), paused="by bob") == []
    assert warned(leak("n1"), paused_jobs={JOB.key: "by alice"}) == []


def test_warnings_that_come_without_end_do_not_make_a_gang_save_without_end() -> None:
    lately = replace(GANG, saves_at=b.NOW - WARNED_PAUSE_SECONDS + 1)
    assert warned(leak("n1"), gang=lately) == []
    assert len(warned(leak("n1"), gang=replace(GANG, saves_at=b.NOW - WARNED_PAUSE_SECONDS - 1))) == 1
    steady = replace(COST, best_seconds=250)
    assert warned(leak("n1"), gang=replace(GANG, saves_at=b.NOW - 399), cost=steady) == [], "it takes 40 s"
    assert warned(leak("n1", at=b.NOW - WARNED_SECONDS_MAX - 1)) == [], "as after a start of the control plane"


def test_for_a_node_that_a_person_has_resumed_since_no_gang_saves() -> None:
    resumed = b.node("n1", record=b.record("n1", cleared_at=b.NOW - 1))
    snapshot = b.snapshot(resumed, jobs=[JOB], mode=Mode.APPROVE, signals=(leak("n1"),))
    assert list(wanted(snapshot, {7: GANG}, {}, {}, WARN)) == []


def test_a_better_interval_is_ordered_where_it_differs_by_more_than_a_quarter() -> None:
    rare = replace(GANG, own_every=5000)
    [one] = orders(rare, cost=COST, mode=Mode.ACT)
    assert (one.cause, one.every) == (SaveCause.INTERVAL, 1596)
    assert one.why == "every 1596 steps from now on instead of 5000 steps"
    assert orders(replace(GANG, own_every=2000), cost=COST, mode=Mode.ACT) == []
    assert orders(cost=COST, mode=Mode.ACT) == [], "the training's own is shorter, and stays due"
    assert orders(replace(rare, ordered_every=1596), cost=COST, mode=Mode.ACT) == []
    assert orders(rare, cost=COST, mode=Mode.APPROVE) == []
    assert orders(cost=replace(COST, seconds=None, best_seconds=None), mode=Mode.ACT) == []


def test_saves_in_memory_are_ordered_their_own_interval_where_all_ranks_ask_for_it() -> None:
    cost = replace(COST, best_seconds=250.0, best_memory_seconds=15.0)
    assert orders(cost=cost, mode=Mode.ACT) == [], "it does not ask"
    asking = replace(GANG, asks_memory=True, own_memory_every=100)
    [one] = orders(asking, cost=cost, mode=Mode.ACT)
    assert (one.cause, one.every, one.memory_every) == (SaveCause.INTERVAL, 0, 30)
    assert one.why == "every 30 steps in memory from now on instead of 100 steps"
    ordered = replace(asking, ordered_memory_every=30)
    assert orders(ordered, cost=cost, mode=Mode.ACT) == []
    [other] = orders(ordered, request=ASKED, cost=cost, mode=Mode.ACT)
    assert other.memory_every == 30
    [both] = orders(replace(asking, own_every=5000), cost=replace(cost, best_seconds=798), mode=Mode.ACT)
    assert (both.every, both.memory_every) == (1596, 30)


@pytest.mark.parametrize("steps", [1.0, 1.2, 1.5, 2.0, 2.5, 3.5, 4.5, 40.0])
def test_an_interval_of_few_steps_is_not_ordered_again_and_again_as_measurements_vary(steps: float) -> None:
    """Each order has a checkpoint with files saved, too."""
    gang, count = replace(GANG, asks_memory=True, own_memory_every=100), 0
    for number in range(40):
        measured = steps * (1 + 0.05 * (-1) ** number) * 0.5
        for one in orders(gang, cost=replace(COST, best_seconds=250, best_memory_seconds=measured), mode=Mode.ACT):
            gang, count = replace(gang, ordered_memory_every=one.memory_every), count + 1
    assert count == 1
    assert abs(gang.memory_every - steps) <= max(0.25 * steps, 0.75)


def test_another_order_keeps_the_interval_that_was_ordered() -> None:
    order = SaveOrder(7, 0, 0, 1000, 3, 90, OrderState.WITHDRAWN)
    [one] = orders(replace(GANG, ordered_every=1596, order=order), request=ASKED)
    assert one.every == 1596
