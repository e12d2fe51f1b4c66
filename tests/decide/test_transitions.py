"""What a decision changes in a record, and what no decision may leave behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import builders as b
from understudy_controlplane.decide.table import TABLE, Row, look_up
from understudy_controlplane.decide.transitions import InvariantError, follow, follow_all, violations
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, LiftedDetail, RequestDetail, Signal
from understudy_controlplane.fleet.node import (
    IN_REPAIR,
    OF_A_SUSPECT,
    OUT_OF_SERVICE,
    DrainKind,
    NodeRecord,
    NodeState,
    ValidationOrigin,
)
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.suspicion import SuspicionCause


def decision(row: Row, **values: object) -> Decision:
    known = Decision(
        row.number, "n1", row.action, Because.RULE, row.why, row.to, suspects=row.suspects, origin=row.origin
    )
    return replace(known, **values)  # type: ignore[arg-type]


@st.composite
def records(draw: st.DrawFn) -> NodeRecord:
    """Any record that keeps the invariants."""
    state = draw(st.sampled_from(NodeState))
    origin = draw(st.sampled_from(ValidationOrigin)) if state is NodeState.VALIDATING else None
    causes = draw(st.lists(st.sampled_from(SuspicionCause), min_size=1, unique=True))
    suspected = state is NodeState.SUSPECT or origin in OF_A_SUSPECT
    drained = state in OUT_OF_SERVICE and draw(st.booleans())
    weight = draw(st.none() | st.integers(1, 100))
    record = NodeRecord(
        "n1",
        state,
        since=b.NOW - 10,
        drained_at=b.NOW - 5 if drained else None,
        drain_reason="understudy: xid.79" if drained else "",
        drain_user="root" if drained else "",
        drain_reason_at=5 if drained else 0,
        past_boot_id="boot" if state in IN_REPAIR and draw(st.booleans()) else "",
        weight=weight,
        weight_before=None if weight is None else 1,
        suspicions=b.suspected(*causes, since=b.NOW - 10) if suspected else (),
        validation_origin=origin,
        drain_kind=draw(st.sampled_from(DrainKind)) if state is NodeState.QUARANTINED else None,
    )
    assert violations(record) == []
    return record


@given(record=records(), row=st.sampled_from(TABLE), cleared=st.booleans(), boot=st.sampled_from(["", "boot-2"]))
def test_no_row_leaves_a_record_that_contradicts_itself(record: NodeRecord, row: Row, cleared: bool, boot: str) -> None:
    if all(look_up(record, signal) is not row for signal in row.signals):
        return
    ended = record.suspicions[0].cause if Signal.CLEAN in row.signals else None
    reboots = boot if row.to is NodeState.REPAIRING else ""
    one = decision(row, clears=cleared, past_boot_id=reboots, ends_suspicion=ended)
    change = follow(record, one, b.NOW)
    assert change.after is not None
    assert violations(change.after) == []
    assert change.after.state is (row.to or record.state)


@given(records())
def test_a_decision_that_is_held_back_changes_nothing(record: NodeRecord) -> None:
    held = Decision(10, "n1", Action.NOTHING, Because.PAUSED, "paused")
    change = follow(record, held, b.NOW)
    assert not change.changes_record
    assert not change.ends_incident
    assert not change.closes_ticket


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"to_state": NodeState.SUSPECT}, "a suspect has a suspicion"),
        ({"to_state": NodeState.VALIDATING}, "a validation has an origin"),
        ({"to_state": NodeState.IN_SERVICE, "past_boot_id": "boot"}, "only a repair or validation ends a boot"),
    ],
)
def test_a_decision_that_would_leave_such_a_record_is_refused_and_the_others_are_not(
    values: dict[str, object], words: str
) -> None:
    wrong = replace(Decision(99, "n1", Action.NOTHING, Because.RULE, "wrong"), **values)  # type: ignore[arg-type]
    right = Decision(30, "n2", Action.NOTHING, Because.RULE, "silent", NodeState.UNKNOWN)
    with pytest.raises(InvariantError, match=words):
        follow(NodeRecord("n1"), wrong, b.NOW)
    changes, refused = follow_all({"n1": NodeRecord("n1"), "n2": NodeRecord("n2")}, [wrong, right], b.NOW)
    assert [one.decision for one in changes] == [right]
    assert [one.decision for one in refused] == [wrong]


def test_a_record_that_was_wrong_before_still_takes_decisions() -> None:
    wrong = NodeRecord("n1", weight=5)
    assert violations(wrong)
    taken = Decision(10, "n1", Action.QUARANTINE, Because.RULE, "broken", NodeState.QUARANTINED)
    assert follow(wrong, taken, b.NOW).changes_record


class TestWhatEndsWithATransition:
    @pytest.mark.parametrize(
        ("detail", "cleared_at"),
        [
            (None, b.NOW),
            (LiftedDetail(after=b.NOW - 3), b.NOW - 3),
            (LiftedDetail(after=b.NOW - 99), b.NOW - 50),
            (RequestDetail(request=1, verb=Verb.RELEASE, asked_at=b.NOW - 3), b.NOW - 3),
            (RequestDetail(request=1, verb=Verb.RELEASE, asked_at=b.NOW - 99), b.NOW - 50),
        ],
    )
    def test_a_person_who_resumes_a_node_answers_for_what_was_reported_while_it_was_drained(
        self, detail: LiftedDetail | RequestDetail | None, cleared_at: float
    ) -> None:
        record = NodeRecord("n1", NodeState.FOREIGN_DRAIN, cleared_at=b.NOW - 50)
        finding = Finding(Signal.DRAIN_LIFTED, "administration", "n1", b.NOW, "resumed", detail=detail)
        row = look_up(record, Signal.DRAIN_LIFTED)
        assert row is not None
        after = follow(record, decision(row, finding=finding), b.NOW).after
        assert after is not None
        assert after.cleared_at == cleared_at
        assert after.vouched_at == (0.0 if detail is None else cleared_at)

    def test_a_test_that_is_passed_is_no_persons_word_nor_is_a_test_that_a_person_asks_for(self) -> None:
        tested = NodeRecord("n1", NodeState.VALIDATING, vouched_at=5.0, validation_origin=ValidationOrigin.QUARANTINED)
        row = look_up(tested, Signal.VALIDATED)
        assert row is not None
        after = follow(tested, decision(row), b.NOW).after
        assert after is not None and (after.cleared_at, after.vouched_at) == (b.NOW, 5.0)
        detail = RequestDetail(request=1, verb=Verb.VALIDATE, asked_at=b.NOW - 3)
        finding = Finding(Signal.TEST_ASKED, "operator.validate", "n1", b.NOW, "asked", detail=detail)
        row = look_up(NodeRecord("n1"), Signal.TEST_ASKED)
        assert row is not None
        begun = follow(NodeRecord("n1"), decision(row, finding=finding, clears=True), b.NOW).after
        assert begun is not None and (begun.cleared_at, begun.vouched_at) == (b.NOW - 3, 0.0)

    @pytest.mark.parametrize("to", list(NodeState))
    def test_a_ticket_is_closed_when_the_node_leaves_the_person(self, to: NodeState) -> None:
        one = Decision(
            1,
            "n1",
            Action.NOTHING,
            Because.RULE,
            "why",
            to,
            origin=ValidationOrigin.RELEASED if to is NodeState.VALIDATING else None,
            suspects=SuspicionCause.HEALTH if to is NodeState.SUSPECT else None,
        )
        change = follow(NodeRecord("n1", NodeState.MANUAL_REPAIR, drained_at=5.0), one, b.NOW)
        assert change.closes_ticket == (to is not NodeState.MANUAL_REPAIR)
        assert change.ends_incident == (to not in OUT_OF_SERVICE)

    @pytest.mark.parametrize(
        ("before", "to", "stands"),
        [
            (NodeState.QUARANTINED, NodeState.REPAIRING, True),
            (NodeState.QUARANTINED, NodeState.MANUAL_REPAIR, True),
            (NodeState.REPAIRING, NodeState.QUARANTINED, False),
            (NodeState.REPAIRING, NodeState.MANUAL_REPAIR, False),  # it may have been resumed for its repair
            (NodeState.VALIDATING, NodeState.MANUAL_REPAIR, False),
            (NodeState.OPERATOR_HOLD, NodeState.IN_SERVICE, False),
        ],
    )
    def test_the_proof_of_a_drain_stands_while_the_drain_does(
        self, before: NodeState, to: NodeState, stands: bool
    ) -> None:
        record = b.record("n1", before, drained_at=5.0, drain_reason="understudy: x", drain_user="root")
        after = follow(record, Decision(1, "n1", Action.NOTHING, Because.RULE, "why", to), b.NOW).after
        assert after is not None
        assert (after.drained_at is not None, bool(after.drain_user)) == (stands, stands)
