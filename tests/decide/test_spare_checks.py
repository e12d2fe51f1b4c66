"""Idle spares are validated again in turn, and never in the way of a gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.spare_checks import checks_due
from understudy_controlplane.decide.spares import joining_pool
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.job import LastAttempt
from understudy_controlplane.fleet.node import NodeState, NodeView, ValidationOrigin
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import PoolSwapPlan, RecoveryKind, RecoveryStatus, RepairAttempt
from understudy_controlplane.fleet.snapshot import Snapshot

DAYS = 24 * 3600.0
POLICY = {"enabled": True, "spare_check_hours": 72}
CONFIG = b.config(validation=POLICY)


def validated(node: str, ago: float, seconds: float = 600.0) -> RepairAttempt:
    at = b.NOW - ago
    return RepairAttempt(1, node, RecoveryKind.VALIDATE, None, at, RecoveryStatus.SUCCEEDED, "", at + seconds)


def pool(*nodes: NodeView, **values: Any) -> Snapshot:
    return b.snapshot(*nodes, spares=("n6", "n7", "n8"), **values)


def due(snapshot: Snapshot, **policy: Any) -> list[str]:
    return [one.node for one in checks_due(snapshot, b.config(validation=POLICY | policy))]


def judged(snapshot: Snapshot) -> list[Decision]:
    return decide(snapshot, detect(snapshot, CONFIG), CONFIG)


def test_the_spare_whose_validation_is_longest_ago_has_its_turn() -> None:
    assert due(pool()) == ["n6"]
    assert due(pool(attempts=(validated("n6", 4 * DAYS), validated("n7", 5 * DAYS)))) == ["n8"]
    lately = tuple(validated(name, ago * DAYS) for name, ago in (("n6", 1), ("n7", 5), ("n8", 4)))
    assert due(pool(attempts=lately)) == ["n7"]
    (decision,) = [one for one in judged(pool()) if one.action is Action.VALIDATE]
    assert (decision.row, decision.subject, decision.origin) == (263, "n6", ValidationOrigin.SPARE_CHECK)


def test_it_is_off_until_the_site_sets_it_and_observes_only() -> None:
    assert due(pool(), spare_check_hours=0) == due(pool(), enabled=False) == due(pool(mode=Mode.OBSERVE)) == []


def test_the_day_has_an_hour_for_all_of_them() -> None:
    spent = [validated(name, 3600.0 * (4 + i), 1500.0) for i, name in enumerate(("n7", "n8"))]
    assert due(pool(attempts=tuple(spent))) == [], "a third one would be over the hour"
    assert due(pool(attempts=tuple(spent)), spare_check_minutes_per_day=90) == ["n6"]
    assert due(pool(attempts=(*spent, validated("n1", 7200.0, 3600.0))), spare_check_minutes_per_day=90) == ["n6"]


@pytest.mark.parametrize(
    "busy",
    [
        pool(
            b.node(
                "n7",
                NodeState.VALIDATING,
                is_spare=True,
                record=b.record("n7", NodeState.VALIDATING, validation_origin=ValidationOrigin.SPARE_CHECK),
            )
        ),
        pool(b.node("n7", NodeState.SUSPECT, is_spare=True), b.node("n8", heard_at=None, is_spare=True)),
        pool(
            b.node("n6", is_spare=True, slurm=b.slurm_node("n6", "ALLOCATED")),
            requests={
                "n7": Request(1, "n7", Verb.HOLD, "", "alice", b.NOW),
                "n8": Request(2, "n8", Verb.HOLD, "", "alice", b.NOW),
            },
        ),
    ],
    ids=["another is tested", "the last one that is free", "none is idle"],
)
def test_otherwise_it_waits(busy: Snapshot) -> None:
    assert due(busy) == []


def test_a_gang_that_loses_a_node_comes_first() -> None:
    seen = pool(b.node("n2", events=(b.xid_event("n2", 79),)), jobs=[b.job()])
    decisions = judged(seen)
    assert [one.plan.spares for one in decisions if isinstance(one.plan, PoolSwapPlan)] == [("n6",)]
    assert not [one for one in decisions if one.action is Action.VALIDATE]


def test_a_spare_whose_requested_validation_begins_is_given_to_no_gang() -> None:
    asked = {"n6": Request(1, "n6", Verb.VALIDATE, "slow?", "alice", b.NOW - 1)}
    seen = pool(b.node("n2", events=(b.xid_event("n2", 79),)), jobs=[b.job()], requests=asked)
    decisions = judged(seen)
    assert [one.subject for one in decisions if one.action is Action.VALIDATE] == ["n6"]
    assert [one.plan.spares for one in decisions if isinstance(one.plan, PoolSwapPlan)] == [("n7",)]


def test_meanwhile_the_pool_takes_no_other_node_for_it() -> None:
    record = b.record("n6", NodeState.VALIDATING, validation_origin=ValidationOrigin.SPARE_CHECK)
    seen = pool(b.node("n6", NodeState.VALIDATING, is_spare=True, record=record))
    config = b.config(validation=POLICY, spares={"count": 3})
    assert joining_pool(seen, (), config) == ()
    other = replace(record, validation_origin=ValidationOrigin.QUARANTINED)
    seen = pool(b.node("n6", NodeState.VALIDATING, is_spare=True, record=other))
    assert len(joining_pool(seen, (), config)) == 1


def test_a_gang_that_no_spare_can_help_does_not_keep_the_others_from_their_turn() -> None:
    """It waits for days, found in each round; where it gets a spare, no spare is taken for a check."""
    waiting: dict[str, Any] = {"state": "PENDING", "nodes": (), "node_count": 4, "restart_count": 1}
    job = b.job(**waiting, reason="Resources", submit_at=int(b.NOW) - 500, excluded_nodes=("n5", "n6", "n7", "n8"))
    last = {job.key: LastAttempt(0, ("n1", "n2", "n3", "n4"), 41)}
    drained = b.slurm_node("n3", flags=["DRAIN"], reason="understudy: xid.79")
    seen = pool(b.node("n3", NodeState.QUARANTINED, slurm=drained), jobs=[job], last_attempts=last)
    acting = {one.subject: one.action for one in judged(seen) if one.plan is not None}
    assert acting["n6"] is Action.VALIDATE
    anywhere = replace(job, slurm=replace(job.slurm, excluded_nodes=()))
    helped = judged(replace(seen, jobs={job.key: anywhere}))
    assert [one.action for one in helped if one.plan is not None] == [Action.MOVE_GANG]
