"""Plans wait for an operator in mode approve, and proposals end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.config import Mode
from understudy_controlplane.decide import plans
from understudy_controlplane.decide.approvals import APPROVAL_HOLDS_SECONDS, await_approval, endings
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.administration import cancelled
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Request, Verb
from understudy_controlplane.fleet.recovery import (
    FillPoolPlan,
    LauncherRestartPlan,
    PagePlan,
    Plan,
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    RepairPlan,
    Rung,
    StepName,
    StepStatus,
    ValidationPlan,
)

CONFIG = b.config(mode="approve")
DRAIN = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason="understudy: broken")
TESTED = ValidationPlan(steps=(StepName.RUN_VALIDATION,), nodes=("n1",), label="n1-1", requested=True)

TEST = msgspec.structs.replace(TESTED, requested=False)
RESET = RepairPlan(
    steps=(StepName.RESET_GPU,), nodes=("n1",), drain_reason="understudy: x", rung=Rung.RESET_GPU, label="n1-2"
)
FILL = FillPoolPlan(steps=(StepName.FILL_POOL,), spares=("n1",))
MOVE = PoolSwapPlan(
    steps=plans.SWAP_STEPS,
    nodes=("n1",),
    drain_reason="understudy: x",
    spares=("n3",),
    seats=("n2", "n3"),
    job=JobKey(b.CLUSTER, 7, 1),
    user="news",
    submit_at=1,
    restart_count=0,
)


def decision(plan: Plan, request: int | None = None) -> Decision:
    return Decision(
        10, "n1", Action.QUARANTINE, Because.RULE, "broken", NodeState.QUARANTINED, plan=plan, request=request
    )


def proposal(status: RecoveryStatus, plan: Plan = DRAIN, approved_at: float | None = None) -> Recovery:
    by = "alice" if approved_at else ""
    return Recovery(7, plan, status, b.NOW - 60, (), approve_by=b.NOW + 60, approved_at=approved_at, approved_by=by)


def after(one: Decision, *proposals: Recovery, mode: Mode = Mode.APPROVE, **values: Any) -> Decision:
    (found,) = await_approval(b.snapshot(mode=mode, proposals=proposals, **values), [one], CONFIG)
    return found


def test_a_plan_becomes_a_proposal_and_changes_nothing() -> None:
    found = after(decision(DRAIN))
    assert (found.action, found.because, found.plan, found.to_state) == (
        Action.NOTHING,
        Because.AWAITS_APPROVAL,
        None,
        None,
    )
    assert (found.proposed, found.approve_by) == (DRAIN, b.NOW + CONFIG.recovery.approval_seconds)


def test_a_proposal_that_waits_is_not_made_twice_although_the_words_of_its_plan_differ() -> None:
    worse = msgspec.structs.replace(DRAIN, drain_reason="understudy: broken twice")
    found = after(decision(worse), proposal(RecoveryStatus.AWAITS_APPROVAL))
    assert (found.because, found.proposed) == (Because.AWAITS_APPROVAL, None)


def test_what_is_approved_is_done_as_it_is_planned_now() -> None:
    worse = msgspec.structs.replace(DRAIN, drain_reason="understudy: broken twice")
    found = after(decision(worse), proposal(RecoveryStatus.APPROVED, approved_at=b.NOW - 1))
    assert (found.plan, found.proposal, found.to_state) == (worse, 7, NodeState.QUARANTINED)
    assert found.reason == "broken; approved by alice"


@pytest.mark.parametrize(
    ("approved", "planned"),
    [
        (TEST, msgspec.structs.replace(TEST, rung=Rung.REBOOT)),
        (RESET, msgspec.structs.replace(RESET, rung=Rung.REBOOT, steps=(StepName.REBOOT_NODE,))),
        (RESET, msgspec.structs.replace(RESET, gpus=("0",))),
        (FILL, msgspec.structs.replace(FILL, spares=("n1", "n2"))),
        (MOVE, msgspec.structs.replace(MOVE, spares=("n4",), seats=("n2", "n4"))),
        (MOVE, msgspec.structs.replace(MOVE, preempted=(21,))),
        (MOVE, msgspec.structs.replace(MOVE, leaving=("n2",))),
    ],
)
def test_an_approval_is_for_what_was_shown(approved: Plan, planned: Plan) -> None:
    shown = proposal(RecoveryStatus.APPROVED, approved, approved_at=b.NOW - 5)
    assert after(decision(approved), shown).plan == approved
    found = after(decision(planned), shown)
    assert (found.plan, found.proposed, found.because) == (None, planned, Because.AWAITS_APPROVAL)
    assert "has changed since" in found.reason
    again = replace(proposal(RecoveryStatus.AWAITS_APPROVAL, planned), id=8)
    assert after(decision(planned), shown, again).proposed is None, "it is proposed once"
    jobs = [b.job(job_id=7, submit_at=1)]
    seen = b.snapshot(mode=Mode.APPROVE, proposals=(shown, again), jobs=jobs)
    assert not [*endings(seen)], "it may be planned so again"
    back = after(decision(approved), shown, again)
    assert (back.plan, back.proposal) == (approved, 7)
    rejected = replace(again, status=RecoveryStatus.CANCELLED)
    assert after(decision(approved), shown, rejected).because is Because.CANCELLED, "that is the later answer"
    too = replace(proposal(RecoveryStatus.APPROVED, planned, approved_at=b.NOW - 1), id=8)
    (ending,) = endings(b.snapshot(mode=Mode.APPROVE, proposals=(shown, too), jobs=jobs))
    assert (ending.proposal, ending.status) == (7, RecoveryStatus.OVERTAKEN)


def test_what_was_proposed_meanwhile_ends_when_what_was_approved_begins() -> None:
    waits = proposal(RecoveryStatus.AWAITS_APPROVAL)
    for number, ended in ((6, []), (9, [7])):
        begun = Recovery(number, DRAIN, RecoveryStatus.RUNNING, b.NOW - 1, ())
        over = endings(b.snapshot(mode=Mode.APPROVE, proposals=(waits,), recoveries=(begun,)))
        assert [one.proposal for one in over] == ended


@pytest.mark.parametrize("status", [RecoveryStatus.AWAITS_APPROVAL, RecoveryStatus.APPROVED])
@pytest.mark.parametrize(
    ("shown", "over"),
    [
        ({"state": "RUNNING"}, False),
        ({"state": "COMPLETING"}, False),
        ({"state": "PENDING", "restart_count": 1}, False),
        ({"state": "RUNNING", "restart_count": 1}, True),
        ({"state": "COMPLETED"}, True),
        ({"state": "CANCELLED"}, True),
        (None, True),
    ],
)
def test_what_is_proposed_for_a_gang_ends_with_its_attempt(
    status: RecoveryStatus, shown: dict[str, Any] | None, over: bool
) -> None:
    """No operator is asked about a job that is gone. What its node needs is proposed by itself."""
    job = b.job(**shown) if shown is not None else None
    move = msgspec.structs.replace(MOVE, job=b.job().key)
    waits = proposal(status, move, approved_at=b.NOW - 1)
    seen = b.snapshot(mode=Mode.APPROVE, proposals=(waits,), jobs=[job] if job else [])
    assert [(one.proposal, one.status) for one in endings(seen)] == [(7, RecoveryStatus.OVERTAKEN)] * over
    assert not [*endings(b.changed(seen, read_at=None, jobs={}))], "nothing is known of jobs before Slurm was read"


def test_the_nodes_that_were_approved_are_taken_while_they_fit() -> None:
    fault = Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW - 1, "off the bus")

    def moved(*approved: Recovery, spares: tuple[str, ...] = ("n6", "n7")) -> PoolSwapPlan:
        used = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in ("n6", "n7") if name not in spares]
        snapshot = b.snapshot(*used, jobs=[b.job()], spares=spares, mode=Mode.APPROVE, proposals=approved)
        (found,) = [one for one in decide(snapshot, [fault], CONFIG) if one.subject == "n2"]
        return b.plan_as(PoolSwapPlan, found.plan or found.proposed)

    first = moved()
    assert first.spares == ("n6",)
    other = moved(spares=("n7",))
    shown = proposal(RecoveryStatus.APPROVED, other, approved_at=b.NOW - 1)
    assert (moved(shown).spares, moved(shown, spares=("n6",)).spares) == (("n7",), ("n6",))


def test_an_approval_that_is_too_old_counts_no_more_also_where_its_proposal_has_not_ended() -> None:
    found = after(decision(DRAIN), proposal(RecoveryStatus.APPROVED, approved_at=b.NOW - APPROVAL_HOLDS_SECONDS))
    assert (found.because, found.proposed, found.plan) == (Because.AWAITS_APPROVAL, None, None)


def test_what_is_rejected_is_not_proposed() -> None:
    found = after(decision(DRAIN), proposal(RecoveryStatus.CANCELLED))
    assert (found.because, found.proposed, found.plan) == (Because.CANCELLED, None, None)


@pytest.mark.parametrize(
    ("rule", "seconds_after", "because"),
    [
        ("xid.79", 30, Because.CANCELLED),
        ("silence.node_dead", -30, Because.CANCELLED),
        ("silence.node_dead", 30, Because.AWAITS_APPROVAL),
    ],
    ids=["the same rule", "known when it was rejected", "later, by another rule"],
)
def test_a_rejection_is_for_the_faults_that_were_known(rule: str, seconds_after: float, because: Because) -> None:
    shown = msgspec.structs.replace(DRAIN, rules=("xid.79",))
    rejected = replace(proposal(RecoveryStatus.CANCELLED, shown), ended_at=b.NOW - 50)
    found = Finding(Signal.HARDWARE_FAULT, rule, "n1", b.NOW - 50 + seconds_after, "broken")
    assert after(replace(decision(DRAIN), finding=found), rejected).because is because


def test_a_rejected_fault_hides_no_other_one() -> None:
    node = b.node("n2", events=(b.xid_event("n2", 79),))
    known, new = (Finding(Signal.HARDWARE_FAULT, rule, "n2", b.NOW - at, rule) for rule, at in (("a", 99), ("b", 9)))
    (first,) = decide(b.snapshot(node, mode=Mode.APPROVE), [known], CONFIG)
    assert first.proposed is not None
    rejected = Recovery(
        7, first.proposed, RecoveryStatus.CANCELLED, b.NOW - 60, (), approve_by=b.NOW + 60, ended_at=b.NOW - 50
    )
    seen = b.snapshot(node, mode=Mode.APPROVE, proposals=(rejected,))
    found = decide(seen, [known, new], CONFIG)
    assert [(one.because, one.proposed is not None) for one in found] == [
        (Because.CANCELLED, False),
        (Because.AWAITS_APPROVAL, True),
    ]


def test_a_node_whose_drain_is_rejected_before_slurm_has_made_it_stays_in_service() -> None:
    """slurmctld refused the drain for as long as it is tried; as if it had been cancelled."""
    record = b.record("n1", NodeState.QUARANTINED, since=b.NOW - 200)
    rejected = replace(proposal(RecoveryStatus.CANCELLED), outcome="rejected by alice")
    (found,) = cancelled(b.snapshot(b.node("n1", NodeState.QUARANTINED, record=record), proposals=(rejected,)))
    assert (found.signal, found.node) == (Signal.DRAIN_LIFTED, "n1")
    drained = replace(record, drained_at=b.NOW - 100)
    assert not [*cancelled(b.snapshot(b.node("n1", NodeState.QUARANTINED, record=drained), proposals=(rejected,)))]


def test_a_rejected_move_leaves_a_node_quarantined_that_was_condemned_before_it() -> None:
    """Its drain is still refused. The gang is not to be moved; no person has spoken for the node."""
    record = b.record("n1", NodeState.QUARANTINED, since=b.NOW - 200)
    node = b.node("n1", NodeState.QUARANTINED, record=record)
    rejected = replace(proposal(RecoveryStatus.CANCELLED, MOVE), outcome="rejected by alice")
    assert not [*cancelled(b.snapshot(node, proposals=(rejected,)))]
    begun = replace(rejected, approved_at=b.NOW - 60, outcome="cancelled by alice")
    assert [one.node for one in cancelled(b.snapshot(node, cancelled=(begun,)))] == ["n1"]


def test_an_approval_is_for_these_nodes_alone() -> None:
    other = msgspec.structs.replace(DRAIN, nodes=("n2",))
    assert after(decision(DRAIN), proposal(RecoveryStatus.APPROVED, other, b.NOW - 1)).proposed == DRAIN


@pytest.mark.parametrize(
    "plan",
    [
        PagePlan(steps=(StepName.OPEN_TICKET,), about=("n1",), reason="x", label="held-n1-1"),
        msgspec.structs.replace(DRAIN, supersedes=3),
        msgspec.structs.replace(DRAIN, requested=True),
    ],
)
def test_a_ticket_what_goes_on_and_what_a_person_asked_for_wait_for_no_one(plan: Plan) -> None:
    assert after(decision(plan)).plan == plan
    assert after(decision(DRAIN), mode=Mode.ACT).plan == DRAIN


def test_a_gang_on_its_way_goes_on_and_one_that_works_waits_for_approval() -> None:
    job, fault = b.job(reservation="proj"), Finding(Signal.HARDWARE_FAULT, "xid.79", "n2", b.NOW - 1, "off the bus")

    def decided(plan: PoolSwapPlan | LauncherRestartPlan, *done: StepName) -> Decision:
        steps = (
            RecoveryStep(i, name, StepStatus.DONE if name in done else StepStatus.PLANNED, 1)
            for i, name in enumerate(plan.steps)
        )
        under_way = Recovery(41, plan, RecoveryStatus.RUNNING, b.NOW - 9, tuple(steps))
        snapshot = b.snapshot(jobs=[job], spares=("n7",), recoveries=(under_way,), mode=Mode.APPROVE)
        (found,) = [one for one in decide(snapshot, [fault], CONFIG) if one.subject == "n2"]
        return found

    moved = plans.swap_plan(b.snapshot(jobs=[job]), job, [replace(fault, node="n3")], job.slurm.nodes, ("n8",))
    credited = plans.launcher_restart_plan(b.snapshot(jobs=[job]), job, b.NOW - 9, 2, 60)
    assert b.plan_as(PoolSwapPlan, decided(moved).plan).reservation == "proj"
    assert decided(moved, StepName.AWAIT_PROCESSES).because is Because.AWAITS_APPROVAL
    proposed = decided(credited)
    assert proposed.because is Because.AWAITS_APPROVAL
    assert b.plan_as(PoolSwapPlan, proposed.proposed).reservation == "proj"


def test_what_the_control_plane_asks_for_itself_waits() -> None:
    for by, waits in ((BY_CONTROL_PLANE, True), ("alice", False)):
        request = Request(5, "n1", Verb.BURN_IN, "new in Slurm", by, b.NOW)
        found = after(decision(TESTED, request=5), requests={"n1": request})
        assert (found.proposed is not None) == waits
        assert found.request == (None if waits else 5)


@pytest.mark.parametrize(
    ("status", "seconds", "ends_as"),
    [
        (RecoveryStatus.AWAITS_APPROVAL, 59.0, None),
        (RecoveryStatus.AWAITS_APPROVAL, 60.0, RecoveryStatus.EXPIRED),
        (RecoveryStatus.APPROVED, APPROVAL_HOLDS_SECONDS - 1, None),
        (RecoveryStatus.APPROVED, APPROVAL_HOLDS_SECONDS, RecoveryStatus.OVERTAKEN),
        (RecoveryStatus.CANCELLED, 1000.0, None),
    ],
)
def test_a_proposal_ends(status: RecoveryStatus, seconds: float, ends_as: RecoveryStatus | None) -> None:
    one = proposal(status, approved_at=b.NOW if status is RecoveryStatus.APPROVED else None)
    over = list(endings(b.snapshot(now=b.NOW + seconds, proposals=(one,))))
    assert [ending.status for ending in over] == ([ends_as] if ends_as else [])


@pytest.mark.parametrize("status", [None, RecoveryStatus.AWAITS_APPROVAL, RecoveryStatus.CANCELLED])
def test_the_pool_is_filled_while_something_else_waits_and_not_with_what_that_takes(
    status: RecoveryStatus | None,
) -> None:
    used = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in ("n3", "n4", "n7", "n8")]
    broken = b.node("n2", events=(b.xid_event("n2", 79),))
    seen = b.snapshot(*used, broken, jobs=[b.job()], mode=Mode.APPROVE)
    config = b.config(mode="approve", spares={"count": 1})
    (move,) = [one.proposed for one in decide(seen, detect(seen, config), config) if one.row == 10]
    assert isinstance(move, PoolSwapPlan)
    before = () if status is None else (proposal(status, move),)
    seen = replace(seen, proposals=before)
    (filled,) = [one.proposed for one in decide(seen, detect(seen, config), config) if one.row == 80]
    assert isinstance(filled, FillPoolPlan)
    assert {*move.spares, *filled.spares} == {"n5", "n6"}
