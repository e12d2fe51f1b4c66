"""A suspect leaves the state SUSPECT with its last suspicion, and loses none on the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.transitions import follow_all
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.gang import BlackHole
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeRecord, NodeState, ValidationOrigin
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause

HOUR = 3600.0
SLOW, HEALTH, BLACK_HOLE = SuspicionCause.SLOW, SuspicionCause.HEALTH, SuspicionCause.BLACK_HOLE
SLOW_TABLE = b.step_table([[1.0] * 200, [1.6] * 200, [1.0] * 200, [1.0] * 200])
SLOW_GANG: dict[str, Any] = {"jobs": [b.job()], "tables": {b.job().key: SLOW_TABLE}}
VALIDATED = b.config(validation={"enabled": True})


def suspect(*suspicions: Suspicion, **values: Any) -> NodeRecord:
    return NodeRecord("n2", NodeState.SUSPECT, suspicions=suspicions, agent_seen_at=b.NOW, **values)


def after_round(snapshot: Snapshot, *findings: Finding, config: Config = VALIDATED) -> tuple[list[int], NodeRecord]:
    """The rows that were entered for n2, and its record then."""
    decisions = decide(snapshot, [*detect(snapshot, config), *findings], config)
    records = {name: node.record for name, node in snapshot.nodes.items()}
    changes, refused = follow_all(records, decisions, snapshot.now)
    assert refused == []
    for change in changes:
        if change.after is not None:
            records[change.after.name] = change.after
    return [one.decision.row for one in changes if one.decision.subject == "n2"], records["n2"]


def blamed(*users: int) -> dict[str, list[BlackHole]]:
    return {"n2": [BlackHole(JobKey(b.CLUSTER, user, 1), user, b.NOW - 10) for user in users]}


class TestSeveralSuspicions:
    def test_the_end_of_one_does_not_return_a_node_that_is_still_slow(self) -> None:
        """Not for one round either: a gang would start on it."""
        node = b.node("n2", record=suspect(Suspicion(BLACK_HOLE, b.NOW - HOUR - 1)))
        rows, record = after_round(b.snapshot(node, **SLOW_GANG))
        assert (rows, record.state) == ([22], NodeState.SUSPECT)
        rows, record = after_round(b.snapshot(b.node("n2", record=record), **SLOW_GANG))
        assert (rows, record.state) == ([23], NodeState.SUSPECT)
        assert record.suspicions == (Suspicion(SLOW, b.NOW),)

    def test_the_last_one_returns_it(self) -> None:
        node = b.node("n2", record=suspect(Suspicion(BLACK_HOLE, b.NOW - HOUR - 1)))
        rows, record = after_round(b.snapshot(node))
        assert (rows, record.state, record.suspicions) == ([21], NodeState.IN_SERVICE, ())

    def test_one_that_is_found_again_is_the_same(self) -> None:
        old = Suspicion(SLOW, b.NOW - 100)
        rows, record = after_round(b.snapshot(b.node("n2", record=suspect(old)), **SLOW_GANG))
        assert (rows, record.suspicions) == ([], (old,))

    def test_a_slow_node_that_looks_wrong_as_well_is_both(self) -> None:
        old = Suspicion(SLOW, b.NOW - 100)
        wrong = Finding(Signal.HEALTH_SUSPECTED, "host.disk", "n2", b.NOW, "its disk is slow")
        _, record = after_round(b.snapshot(b.node("n2", record=suspect(old)), jobs=[b.job()]), wrong)
        assert [one.cause for one in record.suspicions] == [SLOW, HEALTH]

    @pytest.mark.parametrize(("users", "rows"), [((1, 2), [105]), ((1,), [])])
    def test_a_slow_node_that_launchers_blame_is_both(self, users: tuple[int, ...], rows: list[int]) -> None:
        node = b.node("n2", record=suspect(Suspicion(SLOW, b.NOW)))
        assert after_round(b.snapshot(node, jobs=[b.job()], black_holes=blamed(*users)))[0] == rows

    def test_a_fault_ends_them_all(self) -> None:
        node = b.node(
            "n2", record=suspect(Suspicion(SLOW, 1.0), Suspicion(HEALTH, 2.0)), events=(b.xid_event("n2", 79),)
        )
        _, record = after_round(b.snapshot(node))
        assert (record.state, record.suspicions) == (NodeState.QUARANTINED, ())


class TestAValidationThatDoesNotBegin:
    def test_leaves_the_node_suspected_of_what_it_was_before(self) -> None:
        was = (Suspicion(SLOW, b.NOW - 50), Suspicion(HEALTH, b.NOW - 20))
        asked = Request(7, "n2", Verb.VALIDATE, "slow?", "alice", b.NOW - 5)
        rows, record = after_round(b.snapshot(b.node("n2", record=suspect(*was)), requests={"n2": asked}))
        assert (rows, record.validation_origin) == ([257], ValidationOrigin.SUSPECT_REQUESTED)
        held = b.snapshot(b.node("n2", record=record), reservations=b.kept("n2"))
        rows, record = after_round(held)
        assert (rows, record.state, record.suspicions) == ([224], NodeState.SUSPECT, was)

    def test_keeps_it_a_suspect_until_a_validation_though_nothing_is_seen_of_the_cause_any_more(self) -> None:
        """The evidence was cleared for the validation."""
        record = suspect(Suspicion(HEALTH, b.NOW - 50), cleared_at=b.NOW - 40)
        busy = b.snapshot(b.node("n2", record=record), jobs=[b.job()])
        assert after_round(busy)[0] == []
        assert after_round(busy, config=b.config())[0] == [21], "where no suspect is validated"
