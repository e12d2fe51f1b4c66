"""An operator moves a gang off nodes that stay in service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide import job_moves
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import MoveRequest, Outcome, Prospect
from understudy_controlplane.fleet.recovery import PoolSwapPlan, Recovery, RecoveryStatus, StepName
from understudy_controlplane.fleet.snapshot import Snapshot

JOB = b.job()
SPARES = ("n6", "n7", "n8")


def asked(*off: str, **changes: Any) -> MoveRequest:
    return replace(MoveRequest(5, off, "new cables", "alice", b.NOW - 1, b.job().key.submit_at), **changes)


def snapshot(request: MoveRequest, *nodes: Any, **values: Any) -> Snapshot:
    return b.snapshot(*nodes, **({"jobs": [JOB], "spares": SPARES, "moves": {JOB.key: request}} | values))


def decided(seen: Snapshot, config: Config | None = None) -> list[Decision]:
    config = config or b.config()
    return decide(seen, detect(seen, config), config)


def answered(seen: Snapshot, config: Config | None = None) -> Prospect | str:
    return job_moves.prospect(seen, JOB.key, seen.operator.moves[JOB.key], config or b.config())


def test_the_gang_moves_and_the_node_stays_in_service() -> None:
    (decision,) = decided(snapshot(asked("n2")))
    plan = b.plan_as(PoolSwapPlan, decision.plan)
    assert (plan.seats, plan.nodes, plan.leaving, plan.excluded) == (("n1", "n3", "n4", "n6"), (), ("n2",), ("n2",))
    assert (plan.requested, StepName.EXCLUDE_NODES in plan.steps) == (True, True)
    assert (decision.row, decision.to_state, decision.opens_incident, decision.request) == (260, None, False, 5)
    assert answered(snapshot(asked("n2"))) == Prospect(Outcome.WILL_ACT, "job 7 moves to n6")


def test_a_node_in_service_that_does_not_answer_is_waited_for() -> None:
    """Its job could be ended only by setting the node down, which no administrator would know of."""
    seen = snapshot(asked("n2"), b.node("n2", slurmd_silent_since=b.NOW - 5))
    assert not [one for one in decided(seen) if one.row == 260]
    assert answered(seen) == Prospect(Outcome.HELD_BY_GUARD, "it waits until n2 answers, or is found dead")


@pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.FOREIGN_DRAIN])
def test_one_that_is_out_of_service_is_not_waited_for(state: NodeState) -> None:
    seen = snapshot(asked("n2"), b.node("n2", state, slurmd_silent_since=b.NOW - 5))
    assert job_moves.waits_for(seen, JOB.key, asked("n2")) == ""


def test_several_nodes_are_one_plan_and_one_answer() -> None:
    decisions = decided(snapshot(asked("n2", "n3")))
    assert [one.request for one in decisions] == [5, None]
    (plan,) = {b.plan_as(PoolSwapPlan, one.plan) for one in decisions}
    assert plan.leaving == ("n2", "n3")


@pytest.mark.parametrize("values", [{"paused": "x"}, {"paused_jobs": {JOB.key: "x"}}, {"mode": Mode.APPROVE}])
def test_no_pause_and_no_approval_holds_back_what_a_person_asks_for(values: dict[str, Any]) -> None:
    (decision,) = decided(snapshot(asked("n2"), **values))
    assert decision.action is Action.MOVE_GANG


@pytest.mark.parametrize(
    ("values", "sections", "because", "words"),
    [
        ({"spares": ()}, {"spares": {"no_spare": "wait"}}, Because.NO_SPARE, "no fitting spare"),
        (
            {"swaps": ((b.NOW - 9, JOB.key),) * 3},
            {"jobs": {"swaps_per_hour_max": 3}},
            Because.JOB_BUDGET,
            "a move of job 7 began 3 times within the hour; the limit is 3",
        ),
        ({"breaker": "x"}, {}, Because.BREAKER, "breaker is open"),
    ],
)
def test_guards_hold_it_back_and_the_answer_names_them(
    values: dict[str, Any], sections: dict[str, Any], because: Because, words: str
) -> None:
    seen, config = snapshot(asked("n2"), **values), b.config(**sections)
    (decision,) = [one for one in decided(seen, config) if one.row == 260]
    assert (decision.plan, decision.because, decision.request, decision.opens_incident) == (None, because, None, False)
    answer = answered(seen, config)
    assert isinstance(answer, Prospect)
    assert (answer.outcome, words in answer.why) == (Outcome.HELD_BY_GUARD, True)


def test_a_gang_that_cannot_be_requeued_is_refused_in_words() -> None:
    alone = replace(JOB, slurm=replace(JOB.slurm, requeue=False))
    answer = answered(snapshot(asked("n2"), jobs=[alone]))
    assert isinstance(answer, str)
    assert "--requeue" in answer


def test_it_waits_for_a_checkpoint_that_is_newer_than_the_request() -> None:
    waiting = asked("n2", at_checkpoint=True, checkpoint_at=b.NOW - 2)
    assert decided(snapshot(waiting)) == []
    answer = answered(snapshot(waiting))
    assert isinstance(answer, Prospect)
    assert (answer.outcome, "next complete checkpoint" in answer.why) == (Outcome.HELD_BY_GUARD, True)
    (decision,) = decided(snapshot(replace(waiting, checkpoint_at=b.NOW)))
    assert decision.action is Action.MOVE_GANG


def test_it_waits_while_the_gang_is_on_its_way_for_another_reason() -> None:
    (first,) = decided(snapshot(asked("n2")))
    assert first.plan is not None
    running = Recovery(9, first.plan, RecoveryStatus.RUNNING, b.NOW - 1, ())
    assert decided(snapshot(asked("n3"), recoveries=(running,))) == []


@pytest.mark.parametrize(
    ("request_", "values", "words"),
    [
        (asked("n2", at=b.NOW - 3601), {}, "within 1 h"),
        (asked("n2"), {"mode": Mode.OBSERVE}, "only observes"),
        (asked("n5"), {}, "runs on none of these nodes"),
        (asked("n2"), {"jobs": [replace(JOB, slurm=replace(JOB.slurm, state="COMPLETED"))]}, "does not run"),
    ],
)
def test_it_is_given_up_in_words(request_: MoveRequest, values: dict[str, Any], words: str) -> None:
    (decision,) = [one for one in decided(snapshot(request_, **values)) if one.request == 5]
    assert (decision.row, decision.plan, words in decision.reason) == (261, None, True)


def test_without_names_the_nodes_that_are_not_simply_in_service_are_left() -> None:
    odd = [b.node("n2", NodeState.SUSPECT), b.node("n3", NodeState.OPERATOR_HOLD)]
    assert job_moves.nodes_to_leave(b.snapshot(*odd, jobs=[JOB]), JOB) == ("n2", "n3")
