"""What an operator is answered before the loop takes a request up is what the loop then decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide import request_preview
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.repair_cycle import dismisses
from understudy_controlplane.decide.transitions import follow
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Signal, faults_by_node
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import NODE_VERBS, Outcome, Prospect, Request, Verb
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_wire.hardware import GpuStatus

CONFIG = b.config(mode="act", validation={"enabled": True})


def asked(verb: Verb) -> Request:
    return Request(5, "n1", verb, "cables", "alice", b.NOW)


def of_node(snapshot: Snapshot, verb: Verb) -> Prospect | None:
    return request_preview.of_node(snapshot, asked(verb), CONFIG)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ACT])
@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("verb", NODE_VERBS)
def test_the_answer_is_what_the_loop_decides(verb: Verb, state: NodeState, mode: Mode) -> None:
    node = b.node("n1", record=b.record("n1", state, since=b.NOW - 1))
    before = b.snapshot(node, mode=mode)
    prospect = of_node(before, verb)
    if dismisses(state, verb):
        assert prospect is None or state is NodeState.SUSPECT, "nothing else is known against it"
        return
    assert (prospect is not None) == request_preview.fits(before.nodes["n1"].record, verb)
    following = b.snapshot(
        b.node("n1", record=b.record("n1", state, since=b.NOW - 1)), mode=mode, requests={"n1": asked(verb)}
    )
    decided = [one for one in decide(following, (), CONFIG) if one.request == 5]
    acted = [one for one in decided if one.action is not Action.NOTHING]
    assert bool(acted) == (prospect is not None and prospect.outcome is Outcome.WILL_ACT)
    given_up = [one for one in decided if one.row == request_preview.GIVEN_UP_ROW]
    left = verb is Verb.QUARANTINE and state is NodeState.FOREIGN_DRAIN  # to the administrator
    assert bool(given_up) == (left or mode is Mode.OBSERVE)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("state", [NodeState.IN_SERVICE, NodeState.PROBATION, NodeState.SUSPECT])
def test_a_release_dismisses_what_is_known_against_a_node_in_service(state: NodeState, mode: Mode) -> None:
    subject = Subject.of_node("n1")
    fault = OpenIncident(3, subject, "xid.79", Signal.HARDWARE_FAULT, "Xid 79", opened_at=b.NOW - 60)
    node = b.node("n1", record=b.record("n1", state, since=b.NOW - 90))
    before = b.snapshot(node, mode=mode, incidents={subject: fault})
    prospect = of_node(before, Verb.RELEASE)
    assert prospect is not None
    assert (prospect.outcome, prospect.why.startswith("incident 3 (Xid 79) is dismissed")) == (Outcome.WILL_ACT, True)
    (decided,) = decide(b.changed(before, requests={"n1": asked(Verb.RELEASE)}), (), CONFIG)
    change = follow(node.record, decided, b.NOW)
    assert change.after is not None
    assert (change.ends_incident, change.after.cleared_at) == (True, b.NOW)
    assert change.after.state is (NodeState.PROBATION if state is NodeState.PROBATION else NodeState.IN_SERVICE)


def test_what_a_guard_holds_back_is_answered_with_its_words() -> None:
    busy = b.snapshot(b.node("n1"), jobs=[b.job(nodes=("n1",))])
    prospect = of_node(busy, Verb.VALIDATE)
    assert prospect is not None
    assert (prospect.outcome, "not idle" in prospect.why) == (Outcome.HELD_BY_GUARD, True)


def test_while_slurm_cannot_be_read_a_request_waits() -> None:
    prospect = of_node(b.snapshot(b.node("n1"), error="slurmctld does not answer"), Verb.HOLD)
    assert prospect is not None
    assert prospect.outcome is Outcome.HELD_BY_GUARD


def test_a_hold_whose_time_is_over_before_it_could_begin_is_given_up() -> None:
    late = replace(asked(Verb.HOLD), at=b.NOW - 600, until=b.NOW - 1)
    (decided,) = decide(b.snapshot(requests={"n1": late}), (), CONFIG)
    assert (decided.row, decided.to_state) == (request_preview.GIVEN_UP_ROW, None)
    assert "was to end before it could begin" in decided.reason


def test_a_release_that_waits_does_not_return_a_node_with_a_fault_that_was_found_since() -> None:
    """A pause kept it from a node on hold, which an administrator resumed and which failed after that."""
    subject = Subject.of_node("n1")
    fault = OpenIncident(1, subject, "xid.79", Signal.HARDWARE_FAULT, "Xid 79", opened_at=b.NOW)
    for at, row in ((b.NOW - 1, request_preview.GIVEN_UP_ROW), (b.NOW + 1, 252)):
        release = replace(asked(Verb.RELEASE), at=at)
        node = b.node("n1", NodeState.QUARANTINED)
        seen = b.snapshot(node, incidents={subject: fault}, requests={"n1": release}, now=b.NOW + 2)
        assert [one.row for one in decide(seen, (), CONFIG) if one.request == 5] == [row]


def test_a_person_reads_what_is_still_wrong_before_the_release() -> None:
    lost = b.node("n1", NodeState.QUARANTINED, gpus=(b.gpu(3, status=GpuStatus.LOST),), heard_at=b.NOW)
    logged = b.node("n2", NodeState.QUARANTINED, events=(b.xid_event("n2", 79),), heard_at=b.NOW)
    silent = b.node("n3", NodeState.QUARANTINED, heard_at=b.NOW - 600)
    well = b.node("n4", NodeState.QUARANTINED, heard_at=b.NOW)
    found = faults_by_node(detect(b.snapshot(lost, logged, silent, well), CONFIG))
    against = {
        node.name: request_preview.against_release(node, found.get(node.name, ()), b.NOW, CONFIG)
        for node in (lost, logged, silent, well)
    }
    assert "the fault is still there: GPU 3" in against["n1"] and "is lost to NVML" in against["n1"]
    assert "n2 has not booted since it logged: Xid 79" in against["n2"]
    assert "its agent does not report" in against["n3"]
    assert against["n4"] == ""
