"""A decision that fails: nothing is done about its finding, a person is notified, and the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from tests.garbage import garbage_of
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.failures import failed_decisions
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import (
    PagePlan,
    Plan,
    QuarantinePlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    RepairAttempt,
    RepairPlan,
    ReturnPlan,
    Rung,
    StepName,
)
from understudy_controlplane.fleet.snapshot import Snapshot

CONFIG = b.config()
LIMITS = ("breaker_nodes_min", "breaker_nodes_max", "quarantined_nodes_min", "quarantines_per_hour_min")
MANY = b.config(
    guards=dict.fromkeys(LIMITS, 500)
    | {"breaker_share_max": 1.0, "quarantined_share_max": 1.0, "domain_share_max": 1.0}
)
REPAIRED: dict[str, Any] = {"repair": {"enabled": True}, "validation": {"enabled": True, "probation_hours": 1}}


def broken(name: str, state: NodeState = NodeState.IN_SERVICE) -> NodeView:
    return b.node(name, state, events=(b.xid_event(name, 79),))


def bad_job(job_id: int, *nodes: str) -> Job:
    """A row with which no move of the gang can be planned."""
    return b.job(job_id=job_id, nodes=nodes, required_nodes=None)


def bad_weight(name: str) -> dict[str, Recovery]:
    """A row with which nothing that is due for the node is found."""
    plan = QuarantinePlan(nodes=(name,), steps=(), drain_reason="")
    return {name: Recovery(1, plan, RecoveryStatus.FAILED, b.NOW - 900, ())}


def decided(seen: Snapshot, config: Config = CONFIG) -> list[Decision]:
    return decide(seen, detect(seen, config), config)


def outcomes(decisions: Sequence[Decision]) -> dict[str, tuple[Action, Because]]:
    """Outcomes by node."""
    return {one.subject: (one.action, one.because) for one in decisions if one.subject != "fleet"}


LEFT_OUT = (Action.NOTHING, Because.DECISION_FAILED)
QUARANTINED = (Action.QUARANTINE, Because.RULE)


def test_nothing_is_done_about_its_finding_and_the_others_go_on() -> None:
    decisions = decided(b.snapshot(broken("n1"), broken("n3"), jobs=[bad_job(7, "n1", "n2")]))
    assert outcomes(decisions) == {"n1": LEFT_OUT, "n3": QUARANTINED}
    (failed,) = failed_decisions(decisions)
    assert failed.summary.startswith("decision xid.79 failed for n1: TypeError")
    assert "gang_moves.py" in str(failed.evidence.shown()["raised_in"])
    (plan,) = (b.plan_as(PagePlan, one.plan) for one in decisions if one.action is Action.PAGE)
    assert plan.about == ("decision xid.79",)


def test_all_that_is_decided_about_its_gang_is_left_out_with_it() -> None:
    """Moved off one bad node alone, a gang would start again on the other."""
    nodes = [broken(name) for name in ("n1", "n2", "n4", "n5")]
    jobs = [bad_job(7, "n1", "n2"), b.job(job_id=8, nodes=("n2", "n4"))]
    seen = b.snapshot(*nodes, jobs=jobs, spares=("n6", "n7"))
    assert outcomes(decided(seen, MANY)) == dict.fromkeys(("n1", "n2", "n4"), LEFT_OUT) | {"n5": QUARANTINED}


def test_it_counts_for_the_budgets_as_if_it_had_been_taken() -> None:
    config = b.config(guards={"quarantines_per_hour_min": 1, "quarantines_per_hour_share": 0.0})
    seen = b.snapshot(broken("n1"), broken("n3"), jobs=[bad_job(7, "n1")])
    assert outcomes(decided(seen, config)) == {"n1": LEFT_OUT, "n3": (Action.NOTHING, Because.HOURLY_BUDGET)}
    assert outcomes(decided(replace(seen, jobs={}), config))["n1"] == QUARANTINED


def test_those_beyond_the_breakers_limit_open_it_though_some_fail() -> None:
    seen = b.snapshot(*(broken(f"n{number}") for number in range(1, 5)), jobs=[bad_job(7, "n1")])
    assert Action.OPEN_BREAKER in {one.action for one in decided(seen)}


def test_the_pool_is_not_changed_in_a_round_in_which_one_fails() -> None:
    config = b.config(spares={"count": 2})
    seen = b.snapshot(broken("n1"), jobs=[bad_job(7, "n1", "n2")])
    assert Action.FILL_POOL in {one.action for one in decided(b.snapshot(), config)}
    assert Action.FILL_POOL not in {one.action for one in decided(seen, config)}


def test_a_few_fail_alone_among_many() -> None:
    names = [f"n{number}" for number in range(1, 201)]
    faults = [Finding(Signal.HARDWARE_FAULT, f"check.{name}", name, b.NOW, "each by its own rule") for name in names]
    few = b.snapshot(*map(b.node, names), jobs=[bad_job(7, "n9"), bad_job(8, "n150")])
    left_out = [name for name, one in outcomes(decide(few, faults, MANY)).items() if one == LEFT_OUT]
    assert left_out == ["n9", "n150"]
    all_fail = replace(few, jobs={one.key: one for one in (bad_job(n, name) for n, name in enumerate(names, 1))})
    assert set(outcomes(decide(all_fail, faults, MANY)).values()) == {LEFT_OUT}


@pytest.mark.parametrize(
    ("finding", "rest"),
    [
        (Finding(Signal.REPAIR_DUE, "repair.reset", "n1", b.NOW, "without its rung"), "n2"),
        (
            Finding(Signal.JOB_HELD, "prolog.job_held", "", b.NOW, "of a job that is gone", job=b.job(job_id=9).key),
            "n2",
        ),
        (Finding(Signal.GANG_RESTARTED, "launch.crash", "", b.NOW, "the same", job=b.job(job_id=9).key), "n2"),
    ],
)
def test_each_kind_of_decision_can_fail_alone(finding: Finding, rest: str) -> None:
    seen = b.snapshot(b.node("n1", NodeState.QUARANTINED), broken(rest))
    decisions = decide(seen, [finding, *(one for one in detect(seen, CONFIG) if one.node == rest)], CONFIG)
    assert outcomes(decisions) == {finding.label: LEFT_OUT, rest: QUARANTINED}


def test_what_is_due_for_a_node_can_fail_for_that_node_alone() -> None:
    config = b.config(**REPAIRED)
    over = [b.node(name, record=b.record(name, NodeState.PROBATION, since=b.NOW - 7200)) for name in ("n1", "n2")]
    seen = b.snapshot(*over, weights_left=bad_weight("n1"))
    changed = {one.subject for one in decided(seen, config) if one.to_state is NodeState.IN_SERVICE}
    assert changed == {"n2"}
    refused = Finding(Signal.RETURN_REFUSED, "return.refused", "n1", b.NOW, "Slurm refused it")
    back = replace(seen, nodes=b.snapshot().nodes)
    assert outcomes(decide(back, [refused], config)) == {"n1": (Action.NOTHING, Because.DETECTOR_FAILED)}
    assert outcomes(decide(b.changed(back, weights_left={}), [refused], config))["n1"][0] is Action.RETURN


@pytest.mark.parametrize(
    "plan",
    [
        ReturnPlan(nodes=("n1",), steps=(StepName.LIFT_DRAIN,)),
        RepairPlan(nodes=("n1",), steps=(StepName.REBOOT_NODE,), drain_reason="", rung=Rung.REBOOT, label="n1-1"),
    ],
)
def test_neither_return_nor_repair_begins_on_a_node_of_which_a_decision_failed(plan: Plan) -> None:
    seen = b.snapshot(broken("n1"), jobs=[bad_job(7, "n1", "n2")])
    decisions = decided(seen)
    failed = failed_decisions(decisions)
    one = Recovery(1, plan, RecoveryStatus.RUNNING, b.NOW - 9, (RecoveryStep(0, plan.steps[0]),))
    other = replace(one, plan=msgspec.structs.replace(plan, nodes=("n3",)))
    assert [course(each, seen, failed, decisions).may_act for each in (one, other)] == [False, True]
    assert course(one, seen, [], ()).may_act


def test_where_all_of_it_fails_nothing_is_done_but_to_notify_a_person() -> None:
    seen = b.snapshot(broken("n1"), reservations={"understudy_spares": None})
    decisions = decided(seen)
    assert [(one.action, one.plan is not None) for one in decisions] == [(Action.NOTHING, False), (Action.PAGE, True)]
    (failed,) = failed_decisions(decisions)
    assert failed.summary.startswith("decision all failed: ")
    one = Recovery(1, ReturnPlan(nodes=("n5",), steps=(StepName.LIFT_DRAIN,)), RecoveryStatus.RUNNING, b.NOW - 9, ())
    assert not course(one, seen, [failed], decisions).may_act


def test_a_plan_waits_where_it_is_not_known_whether_it_is_approved() -> None:
    unread = Recovery(1, None, RecoveryStatus.APPROVED, b.NOW - 9, ())  # type: ignore[arg-type]
    seen = b.snapshot(broken("n1"), mode=Mode.APPROVE, proposals=(unread,))
    assert outcomes(decided(seen)) == {"n1": LEFT_OUT}


def test_a_person_is_notified_once_a_day() -> None:
    seen = b.snapshot(broken("n1"), jobs=[bad_job(7, "n1", "n2")])
    sent = RepairAttempt(
        1, "detection.down decision xid.79", RecoveryKind.PAGE, None, b.NOW - 9, RecoveryStatus.SUCCEEDED
    )
    again = decided(b.changed(seen, attempts=(sent,)))
    assert Action.PAGE not in {one.action for one in again}


def test_the_round_in_which_one_fails_is_not_kept() -> None:
    seen = b.snapshot(broken("n1"), broken("n3"), jobs=[bad_job(7, "n1", "n2")])
    assert failed_decisions(decided(seen))
    assert garbage_of(lambda: decided(seen)) == 0
