"""Who gets the spare when two gangs want one."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config
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


def decided(snapshot: Snapshot, config: Config = CONFIG) -> dict[str, Decision]:
    return {one.subject: one for one in decide(snapshot, detect(snapshot, config), config)}


def both_fail(first: Job, second: Job, config: Config = CONFIG, **values: Any) -> dict[str, Decision]:
    nodes = [b.node(name, events=(b.xid_event(name, 79),)) for name in ("n1", "n3")]
    return decided(b.snapshot(*nodes, jobs=[first, second], spares=("n7",), **values), config)


def test_the_higher_priority_gets_it_and_the_decision_names_who_waits_and_why() -> None:
    decisions = both_fail(gang(7, 10, "n1", "n2"), gang(8, 500, "n3", "n4"))
    plan = b.plan_as(PoolSwapPlan, decisions["n3"].plan)
    assert "n7" in plan.seats
    waits = decisions["n1"]
    assert waits.because is Because.NO_SPARE
    assert "it stays until there is one; job 8 (priority 500) came before it (priority 10)" in waits.reason


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
    moves = {moved.key: MoveRequest(1, ("n1",), "new cables", "alice", b.NOW - 5, moved.key.submit_at)}
    decisions = decided(b.snapshot(node, jobs=[moved, lost], spares=("n7",), moves=moves))
    assert b.plan_as(PoolSwapPlan, decisions["n3"].plan).job.job_id == 8
    assert decisions["n1"].because is Because.NO_SPARE


SHARED = CONFIG.model_copy(
    update={"spares": CONFIG.spares.model_copy(update={"account_shares": {"physics": 0.5, "chemistry": 0.5}})}
)


def of_account(job_id: int, priority: int, account: str, *nodes: str) -> Job:
    return b.job(job_id=job_id, nodes=nodes, priority=priority, account=account)


def winner(taken: dict[str, int], config: Config = SHARED) -> int:
    first, second = of_account(7, 500, "physics", "n1", "n2"), of_account(8, 10, "chemistry", "n3", "n4")
    decisions = both_fail(first, second, config, spares_taken=taken)
    (plan,) = [one.plan for one in decisions.values() if isinstance(one.plan, PoolSwapPlan)]
    return plan.job.job_id


def test_an_account_that_has_had_its_share_comes_after_the_others_and_the_decision_names_it() -> None:
    first, second = of_account(7, 500, "physics", "n1", "n2"), of_account(8, 10, "chemistry", "n3", "n4")
    decisions = both_fail(first, second, SHARED, spares_taken={"physics": 6, "chemistry": 2})
    assert b.plan_as(PoolSwapPlan, decisions["n3"].plan).job.job_id == 8
    had = "account physics has had 6 of 8 spares within a week, more than its share of 50%"
    assert f"job 8 (priority 10) came before it (priority 500; {had})" in decisions["n1"].reason


@pytest.mark.parametrize("taken", [{}, {"physics": 4, "chemistry": 4}, {"chemistry": 4}])
def test_within_their_shares_priority_decides(taken: dict[str, int]) -> None:
    assert winner(taken) == 7


def test_without_shares_priority_decides() -> None:
    assert winner({"physics": 100}, CONFIG) == 7


def test_over_time_each_account_gets_its_share() -> None:
    """Both want a spare again and again, and physics has the higher priority."""
    config = SHARED.model_copy(
        update={"spares": SHARED.spares.model_copy(update={"account_shares": {"physics": 0.25, "chemistry": 0.75}})}
    )
    taken = {"physics": 0, "chemistry": 0}
    for _ in range(100):
        account = "physics" if winner(taken, config) == 7 else "chemistry"
        taken[account] += 1
    assert 25 <= taken["physics"] <= 26


def test_an_account_that_has_had_its_share_gets_the_spare_that_no_other_wants() -> None:
    node = b.node("n1", events=(b.xid_event("n1", 79),))
    jobs = [of_account(7, 1, "physics", "n1", "n2")]
    decisions = decided(b.snapshot(node, jobs=jobs, spares=("n7",), spares_taken={"physics": 9}), SHARED)
    assert isinstance(decisions["n1"].plan, PoolSwapPlan)
