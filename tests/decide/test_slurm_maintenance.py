"""A node in an administrator's reservation with the flag MAINT: neither repaired nor validated until that is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide import plans
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import RepairDetail
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import (
    NODE_HOLD_PREFIX,
    Plan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    RepairAttempt,
    Rung,
    StepName,
)
from understudy_controlplane.fleet.recovery import StepStatus as Is
from understudy_controlplane.fleet.slurm import SlurmReservation
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

CONFIG = b.config(
    repair={"enabled": True, "dead_node_wait_seconds": 300}, validation={"enabled": True, "timeout_seconds": 3600}
)
REASON = "understudy: xid"


def out(state: NodeState = NodeState.QUARANTINED, *flags: str) -> NodeView:
    record = b.record("n5", state, drained_at=b.NOW - 400, drain_reason=REASON, since=b.NOW - 400)
    return b.node("n5", record=record, slurm=b.slurm_node("n5", flags=["DRAIN", *flags], reason=REASON))


def reserved(in_seconds: float, *nodes: str, flag: str = "MAINT", name: str = "weekly") -> dict[str, Any]:
    one = SlurmReservation(name, nodes, ("root",), frozenset({flag}), int(b.NOW + in_seconds))
    return {"reservations": {name: one}}


def judged(seen: Snapshot) -> Decision:
    (decision,) = [one for one in decide(seen, detect(seen, CONFIG), CONFIG) if one.subject == "n5"]
    return decision


@pytest.mark.parametrize("flag", ["MAINT", "MAINTENANCE"])
def test_no_repair_begins_while_slurm_shows_the_node_in_maintenance(flag: str) -> None:
    assert judged(b.snapshot(out())).action is Action.REPAIR
    decision = judged(b.snapshot(out(NodeState.QUARANTINED, flag)))
    assert (decision.action, decision.because) == (Action.NOTHING, Because.MAINTENANCE)
    assert "in maintenance (MAINT) in Slurm" in decision.reason


@pytest.mark.parametrize("in_seconds", [-600, 1800])
def test_nor_where_one_begins_before_a_validation_would_be_over(in_seconds: float) -> None:
    decision = judged(b.snapshot(out(), **reserved(in_seconds, "n4", "n5")))
    assert decision.because is Because.MAINTENANCE
    assert "reservation weekly (MAINT)" in decision.reason


@pytest.mark.parametrize(
    "other",
    [
        reserved(4000, "n5"),
        reserved(0, "n4"),
        reserved(0, "n5", flag="IGNORE_JOBS", name=f"{NODE_HOLD_PREFIX}n5"),
        reserved(0, "n5", flag="IGNORE_JOBS", name="course"),
    ],
)
def test_other_reservations_hold_back_no_repair(other: dict[str, Any]) -> None:
    assert judged(b.snapshot(out(), **other)).action is Action.REPAIR


def test_what_was_repaired_is_validated_when_the_maintenance_is_over() -> None:
    attempt = RepairAttempt(3, "n5", RecoveryKind.REPAIR, Rung.REBOOT, b.NOW - 300, RecoveryStatus.SUCCEEDED)
    decision = judged(b.snapshot(out(NodeState.REPAIRING, "MAINT"), attempts=(attempt,)))
    assert (decision.row, decision.because) == (210, Because.MAINTENANCE)
    assert judged(b.snapshot(out(NodeState.REPAIRING), attempts=(attempt,))).action is Action.VALIDATE


@pytest.mark.parametrize("in_maintenance", [True, False])
def test_so_is_a_node_that_an_operator_releases(in_maintenance: bool) -> None:
    node = out(NodeState.OPERATOR_HOLD, *(["MAINT"] if in_maintenance else []))
    requests = {"n5": Request(1, "n5", Verb.RELEASE, "done", "alice", b.NOW - 86400)}
    manual = replace(node, record=replace(node.record, state=NodeState.MANUAL_REPAIR))
    decision = judged(b.snapshot(manual, requests=requests))
    assert decision.action is (Action.NOTHING if in_maintenance else Action.VALIDATE)


def test_a_dead_node_in_maintenance_waits_for_its_end_before_a_person_gets_it() -> None:
    assert _of_dead_node("DRAIN") is Action.ASK_PERSON
    assert _of_dead_node("DRAIN", "MAINT") is None


def _of_dead_node(*flags: str) -> Action | None:
    node = replace(out(), slurm=b.slurm_node("n5", "DOWN", [*flags, "NOT_RESPONDING"], REASON), heard_at=b.NOW - 900)
    dead = OpenIncident(1, Subject.of_node("n5"), "silence.node_dead", "node_dead", "dead", b.NOW - 500)
    seen = b.snapshot(node, incidents={dead.subject: dead})
    found = [one for one in decide(seen, detect(seen, CONFIG), CONFIG) if one.subject == "n5" and one.row >= 200]
    return found[0].action if found else None


def begun(plan: Plan, *done: StepName, failed: StepName | None = None) -> Recovery:
    steps = tuple(
        RecoveryStep(i, name, Is.DONE if name in done else Is.FAILED if name is failed else Is.PLANNED)
        for i, name in enumerate(plan.steps)
    )
    return Recovery(9, plan, RecoveryStatus.RUNNING, b.NOW - 61, steps)


REBOOT = plans.repair_plan(out(), RepairDetail(rung=Rung.REBOOT, fault="xid"), "n5-1", None)
RESET = plans.repair_plan(out(), RepairDetail(rung=Rung.RESET_GPU, fault="xid"), "n5-1", None)
TEST = plans.validation_plan(out(), None, "n5-1", 0.0)


@pytest.mark.parametrize(
    ("recovery", "acts"),
    [
        (begun(REBOOT), False),
        (begun(RESET, StepName.HOLD_NODE), False),
        (begun(TEST, StepName.HOLD_NODE, StepName.RESUME_NODE), False),
        (begun(REBOOT, StepName.REBOOT_NODE), True),
        (begun(TEST, StepName.HOLD_NODE, StepName.RESUME_NODE, StepName.RUN_VALIDATION), True),
        (begun(TEST, failed=StepName.HOLD_NODE), True),
    ],
)
def test_a_maintenance_that_begins_after_the_decision_stops_what_has_not_begun(recovery: Recovery, acts: bool) -> None:
    assert course(recovery, b.snapshot(out(NodeState.REPAIRING)), []).may_act
    assert course(recovery, b.snapshot(out(NodeState.REPAIRING, "MAINT")), []).may_act is acts
