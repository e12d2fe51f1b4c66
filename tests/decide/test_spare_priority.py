"""Who gets the spare when two gangs want one."""

from __future__ import annotations

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import MoveRequest
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot

CONFIG = b.config(spares={"no_spare": "wait"}, guards={"gang_moves_min": 5, "quarantined_nodes_min": 5})


def gang(job_id: int, priority: int, *nodes: str) -> Job:
    return b.job(job_id=job_id, nodes=nodes, priority=priority)


def decided(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.subject: one for one in decide(snapshot, detect(snapshot, CONFIG), CONFIG)}


def both_fail(first: Job, second: Job) -> dict[str, Decision]:
    nodes = [b.node(name, events=(b.xid_event(name, 79),)) for name in ("n1", "n3")]
    return decided(b.snapshot(*nodes, jobs=[first, second], spares=("n7",)))


def test_the_higher_priority_gets_it_and_the_decision_names_who_waits_and_why() -> None:
    decisions = both_fail(gang(7, 10, "n1", "n2"), gang(8, 500, "n3", "n4"))
    plan = b.plan_as(PoolSwapPlan, decisions["n3"].plan)
    assert "n7" in plan.seats
    waits = decisions["n1"]
    assert waits.because is Because.NO_SPARE
    assert "it stays until then; job 8 (priority 500) came before it (priority 10)" in waits.reason


def test_of_equal_priority_the_older_job_gets_it() -> None:
    decisions = both_fail(gang(9, 10, "n1", "n2"), gang(8, 10, "n3", "n4"))
    assert b.plan_as(PoolSwapPlan, decisions["n3"].plan).job.job_id == 8


def test_a_gang_that_waits_already_is_judged_by_the_same_order() -> None:
    nodes = [b.node("n1", NodeState.QUARANTINED), b.node("n3", NodeState.QUARANTINED)]
    jobs = [gang(7, 10, "n1", "n2"), gang(8, 500, "n3", "n4")]
    decisions = decided(b.snapshot(*nodes, jobs=jobs, spares=("n7",)))
    assert b.plan_as(PoolSwapPlan, decisions["n3"].plan).job.job_id == 8
    assert decisions["n1"].because is Because.NO_SPARE


def test_a_gang_that_loses_a_node_comes_before_one_that_an_operator_moves() -> None:
    moved, lost = gang(7, 500, "n1", "n2"), gang(8, 10, "n3", "n4")
    node = b.node("n3", events=(b.xid_event("n3", 79),))
    moves = {moved.key: MoveRequest(1, ("n1",), "new cables", "alice", b.NOW - 5)}
    decisions = decided(b.snapshot(node, jobs=[moved, lost], spares=("n7",), moves=moves))
    assert b.plan_as(PoolSwapPlan, decisions["n3"].plan).job.job_id == 8
    assert decisions["n1"].because is Because.NO_SPARE
