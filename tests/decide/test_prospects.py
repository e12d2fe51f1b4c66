"""What an operator is answered before the loop takes a request up is what the loop then decides."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide import prospects
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import NODE_VERBS, Outcome, Prospect, Request, Verb
from understudy_controlplane.fleet.snapshot import Snapshot

CONFIG = b.config(mode="act", validation={"enabled": True})


def asked(verb: Verb) -> Request:
    return Request(5, "n1", verb, "cables", "alice", b.NOW)


def of_node(snapshot: Snapshot, verb: Verb) -> Prospect | None:
    return prospects.of_node(snapshot, asked(verb), CONFIG)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ACT])
@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("verb", NODE_VERBS)
def test_the_answer_is_what_the_loop_decides(verb: Verb, state: NodeState, mode: Mode) -> None:
    node = b.node("n1", record=b.record("n1", state, since=b.NOW - 1))
    before = b.snapshot(node, mode=mode)
    prospect = of_node(before, verb)
    assert (prospect is not None) == prospects.fits(before.nodes["n1"].record, verb)
    following = b.snapshot(
        b.node("n1", record=b.record("n1", state, since=b.NOW - 1)), mode=mode, requests={"n1": asked(verb)}
    )
    decided = [one for one in decide(following, (), CONFIG) if one.request == 5]
    acted = [one for one in decided if one.action is not Action.NOTHING]
    assert bool(acted) == (prospect is not None and prospect.outcome is Outcome.WILL_ACT)
    given_up = [one for one in decided if one.row == prospects.GIVEN_UP_ROW]
    left = verb is Verb.QUARANTINE and state is NodeState.FOREIGN_DRAIN  # to the administrator
    assert bool(given_up) == (left or mode is Mode.OBSERVE)


def test_what_a_guard_holds_back_is_answered_with_its_words() -> None:
    busy = b.snapshot(b.node("n1"), jobs=[b.job(nodes=("n1",))])
    prospect = of_node(busy, Verb.VALIDATE)
    assert prospect is not None
    assert (prospect.outcome, "not idle" in prospect.why) == (Outcome.HELD_BY_GUARD, True)


def test_while_slurm_cannot_be_read_a_request_waits() -> None:
    prospect = of_node(b.snapshot(b.node("n1"), slurm_error="slurmctld does not answer"), Verb.HOLD)
    assert prospect is not None
    assert prospect.outcome is Outcome.HELD_BY_GUARD
