"""What a maintenance does next: which nodes are held, which gang moves, and when nodes return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.maintenance import next_of, outlook, spares_needed
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.decide.repair_cycle import asked
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.maintenance import Maintenance, Next, Stage
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.operator import MoveRequest, Request, Verb
from understudy_controlplane.fleet.recovery import (
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    RepairPlan,
    Rung,
    StepName,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

ALL = tuple(f"n{i}" for i in range(1, 7))
GANG = b.job(job_id=7, nodes=["n2", "n4"])
OTHER = b.job(job_id=8, nodes=["n3"], managed=False)
SECOND = b.job(job_id=9, nodes=["n1", "n8"])


def work(**changes: Any) -> Maintenance:
    values: dict[str, Any] = {"targets": ALL, "nodes": ALL, "reason": "firmware", "by": "alice", "at": b.NOW - 60}
    return Maintenance(3, **values | {"until": b.NOW + 3600, "at_once": 6} | changes)


def seen(maintenance: Maintenance, *nodes: NodeView, **values: Any) -> Snapshot:
    jobs = values.pop("jobs", [GANG, OTHER, SECOND])
    return b.snapshot(*nodes, jobs=jobs, spares=("n7",), maintenances=(maintenance,), **values)


def held(name: str) -> NodeView:
    slurm = b.slurm_node(name, flags=("DRAIN",), reason="understudy: firmware")
    return b.node(name, NodeState.OPERATOR_HOLD, slurm=slurm)


def hold_request(name: str) -> dict[str, Request]:
    return {name: Request(1, name, Verb.HOLD, "maintenance 3: firmware", "alice", b.NOW - 1)}


def test_nodes_without_a_gang_are_held_first_then_gang_by_gang_and_no_more_than_at_once() -> None:
    def holds(at_once: int) -> tuple[str, ...]:
        return next_of(seen(work(at_once=at_once)), work(at_once=at_once)).holds

    assert holds(6) == ("n3", "n5", "n6", "n2", "n4", "n1")
    assert holds(2) == ("n3", "n5")
    assert next_of(seen(work(at_once=2)), work(at_once=2)).stages == {"n3": Stage.ASKED, "n5": Stage.ASKED}


def test_the_next_node_has_its_turn_when_one_is_back() -> None:
    stages = {"n3": Stage.HELD, "n5": Stage.HELD}
    now = work(at_once=2, stages=stages)
    assert next_of(seen(now, held("n3"), held("n5")), now).holds == ()
    validated = b.node("n5", NodeState.VALIDATING)
    assert next_of(seen(now, held("n3"), validated), now).holds == ()
    due = next_of(seen(now, held("n3"), b.node("n5", NodeState.PROBATION)), now)
    assert (due.holds, due.stages["n5"]) == (("n6",), Stage.DONE)


def test_a_hold_that_was_given_up_is_asked_for_again_and_one_that_waits_is_not() -> None:
    now = work(at_once=1, stages={"n5": Stage.ASKED})
    assert next_of(seen(now, requests=hold_request("n5")), now) == Next({"n5": Stage.ASKED})
    assert next_of(seen(now), now).holds == ("n3",)
    assert next_of(seen(now, held("n5")), now).stages == {"n5": Stage.HELD}


def test_one_gang_at_a_time_leaves_all_held_nodes_at_once() -> None:
    stages = dict.fromkeys(("n1", "n2", "n4"), Stage.HELD)
    now = work(stages=stages)
    nodes = [held(name) for name in stages]
    assert next_of(seen(now, *nodes), now).move == (GANG.key, ("n2", "n4"))
    move = MoveRequest(5, ("n1",), "maintenance 3: firmware", "alice", b.NOW - 1, SECOND.key.submit_at, True)
    pending = {SECOND.key: move}
    assert next_of(seen(now, *nodes, moves=pending), now).move is None
    assert next_of(seen(now, *nodes, paused_jobs={GANG.key: "mine"}), now).move == (SECOND.key, ("n1",))
    assert next_of(seen(now, *nodes, jobs=[OTHER]), now).move is None


def test_nothing_begins_while_it_is_paused_or_nothing_may_be_changed() -> None:
    running, paused = work(), work(paused=True)
    assert next_of(seen(paused), paused) == Next({})
    for values in ({"mode": Mode.OBSERVE}, {"paused": "alice"}, {"read_at": None}):
        assert next_of(seen(running, **values), running) == Next({})


def test_a_node_that_a_person_holds_already_stays_with_that_person() -> None:
    now = work()
    due = next_of(seen(now, b.node("n5", NodeState.OPERATOR_HOLD), b.node("n6", NodeState.RETIRED)), now)
    assert not {"n5", "n6"} & set(due.holds)
    over = replace(now, ended_at=b.NOW, stages=due.stages)
    assert "n5" not in next_of(seen(over, held("n5"), held("n3")), over).releases


AT_FAULT = (NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING, NodeState.MANUAL_REPAIR)


@pytest.mark.parametrize("state", AT_FAULT)
def test_a_node_at_fault_is_neither_held_nor_returned(state: NodeState) -> None:
    now = work()
    due = next_of(seen(now, b.node("n5", state)), now)
    assert ("n5" in due.holds, "n5" in due.stages) == (False, False)
    (shown,) = [one for one in outlook(seen(now, b.node("n5", state)), now) if one.node == "n5"]
    assert shown.stage == "waiting"
    assert shown.words.startswith(f"it is {state.value}: no repair of it begins")
    over = work(nodes=("n5",), ended_at=b.NOW)
    assert next_of(seen(over, b.node("n5", state)), over) == Next({}, is_over=True)


def test_a_node_that_fails_before_its_hold_begins_is_not_held() -> None:
    now = work(stages={"n5": Stage.ASKED})
    snapshot = seen(now, b.node("n5", NodeState.QUARANTINED), requests=hold_request("n5"))
    (given_up,) = [one for one in decide(snapshot, (), b.config()) if one.request == 1]
    assert (given_up.to_state, given_up.action) == (None, Action.NOTHING)
    assert "the maintenance leaves it so" in given_up.reason
    by_operator = {"n5": replace(hold_request("n5")["n5"], reason="mine")}
    (held_by,) = [one for one in decide(b.changed(snapshot, requests=by_operator), (), b.config()) if one.request == 1]
    assert held_by.to_state is NodeState.OPERATOR_HOLD


def drained(*flags: str) -> NodeView:
    """Node drained for a fault that could be repaired."""
    reason = "understudy: xid.79"
    slurm = b.slurm_node("n5", "DOWN" if flags else "IDLE", ["DRAIN", *flags], reason)
    record = b.record("n5", NodeState.QUARANTINED, since=b.NOW - 900, drained_at=b.NOW - 890, drain_reason=reason)
    return b.node("n5", record=record, slurm=slurm, heard_at=b.NOW - 1000 if flags else b.NOW)


def test_a_dead_node_goes_to_a_person_when_the_maintenance_is_over() -> None:
    dead = OpenIncident(1, Subject.of_node("n5"), "silence.node_dead", Signal.NODE_DEAD, "dead", b.NOW - 900)
    snapshot = seen(work(), drained("NOT_RESPONDING"), incidents={dead.subject: dead})
    config = b.config(repair={"enabled": True, "dead_node_wait_seconds": 300})
    assert [one for one in decide(snapshot, (), config) if one.subject == "n5"] == []
    (given,) = [one for one in decide(b.changed(snapshot, maintenances=()), (), config) if one.subject == "n5"]
    assert given.to_state is NodeState.MANUAL_REPAIR


def test_no_repair_of_a_node_at_fault_begins_before_the_maintenance_is_over() -> None:
    snapshot = seen(work(), drained())
    config = b.config(repair={"enabled": True}, validation={"enabled": True})
    (waits,) = [one for one in decide(snapshot, (), config) if one.subject == "n5"]
    assert (waits.because, waits.to_state, waits.plan) == (Because.MAINTENANCE, None, None)
    (begins,) = [one for one in decide(b.changed(snapshot, maintenances=()), (), config) if one.subject == "n5"]
    assert begins.to_state is NodeState.REPAIRING


def test_where_a_maintenance_takes_one_node_after_the_other_repairs_go_on() -> None:
    """It may take weeks, and nodes that wait for a repair use up the fleet's budget."""
    config = b.config(repair={"enabled": True}, validation={"enabled": True})
    (begins,) = [one for one in decide(seen(work(at_once=2), drained()), (), config) if one.subject == "n5"]
    assert begins.to_state is NodeState.REPAIRING


def test_nodes_that_wait_for_a_maintenance_use_up_no_budget_of_repairs() -> None:
    rack = work(nodes=("n1", "n3"))
    rebooted = [b.node(name, NodeState.REPAIRING, slurm=b.slurm_node(name, flags=["DRAIN"])) for name in ("n1", "n3")]
    config = b.config(repair={"enabled": True, "nodes_at_once_max": 2}, validation={"enabled": True})
    for maintenance, state in ((rack, NodeState.REPAIRING), (work(nodes=("n2",)), None)):
        snapshot = seen(maintenance, drained(), *rebooted)
        (decision,) = [one for one in decide(snapshot, (), config) if one.subject == "n5"]
        assert decision.to_state is state


@pytest.mark.parametrize(("attempts", "may_act"), [(0, False), (1, True)])
def test_a_repair_that_has_not_begun_when_the_maintenance_starts_waits(attempts: int, may_act: bool) -> None:
    step = RecoveryStep(0, StepName.REBOOT_NODE, attempts=attempts)
    plan = RepairPlan(nodes=("n5",), steps=(step.name,), drain_reason="", rung=Rung.REBOOT, label="n5-1")
    repair = Recovery(4, plan, RecoveryStatus.RUNNING, b.NOW - 9, (step,))
    snapshot = seen(work(), b.node("n5", NodeState.REPAIRING), recoveries=(repair,))
    assert course(repair, snapshot, (), ()).may_act is may_act
    assert course(repair, b.changed(snapshot, maintenances=()), (), ()).may_act


def test_when_its_time_is_over_its_nodes_return_and_it_is_closed_when_the_last_one_has() -> None:
    for over in (work(until=b.NOW - 1), work(ended_at=b.NOW - 1)):
        now = replace(over, stages={"n3": Stage.HELD, "n5": Stage.DONE})
        due = next_of(seen(now, held("n3")), now)
        assert (due.releases, due.holds, due.move, due.is_over) == (("n3",), (), None, False)
        requests = {"n3": Request(2, "n3", Verb.RELEASE, "maintenance 3: firmware", "alice", b.NOW)}
        assert next_of(seen(now, held("n3"), requests=requests), now).releases == ()
        assert not next_of(seen(now, b.node("n3", NodeState.VALIDATING)), now).is_over
        assert next_of(seen(now, b.node("n3", NodeState.PROBATION)), now).is_over


def test_its_nodes_are_no_spares_and_return_by_their_validation() -> None:
    now = work(nodes=("n5", "n7"), stages={"n5": Stage.HELD})
    snapshot = seen(now, held("n5"))
    config = b.config(validation={"enabled": True})
    assert spares.free_spares(snapshot, config) == []
    release = Request(2, "n5", Verb.RELEASE, "done", "alice", b.NOW)
    assert asked(snapshot, snapshot.nodes["n5"], release, config).signal is Signal.VALIDATION_DUE
    assert asked(snapshot, snapshot.nodes["n5"], release, b.config()).signal is Signal.RELEASE_ASKED
    alone = b.changed(snapshot, maintenances=())
    assert asked(alone, alone.nodes["n5"], release, config).signal is Signal.RELEASE_ASKED


def test_the_plan_says_what_happens_to_each_node_and_whether_there_are_spares() -> None:
    plan = work(at_once=3)
    words = {one.node: (one.stage, one.words) for one in outlook(seen(plan), plan)}
    assert words["n5"] == ("waiting", "it is drained")
    assert words["n3"] == ("waiting", "it is drained; job 8 runs to its end")
    assert words["n2"][1].endswith("then it is drained; the gang of job 7 leaves it at its next complete checkpoint")
    assert spares_needed(seen(plan), plan, b.config()).startswith(
        "2 gangs leave 3 seats, one gang after the other (job 7, job 9); free spares elsewhere: 1"
    )
    during = work(stages={"n5": Stage.HELD, "n3": Stage.HELD})
    stages = {one.node: one.stage for one in outlook(seen(during, held("n5"), held("n3")), during)}
    assert (stages["n5"], stages["n3"]) == ("ready", "held")
