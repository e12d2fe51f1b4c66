"""A job that a person wants left alone: nothing begins for it, and what began stops where that is safe."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.recovery_recheck import course
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Refusal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import JobPause
from understudy_controlplane.fleet.recovery import (
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.snapshot import Snapshot

PAUSED = {b.job().key: "an upgrade (alice)"}


def decided(snapshot: Snapshot) -> list[Decision]:
    return decide(snapshot, detect(snapshot, b.config()), b.config())


def faulty(**values: object) -> Snapshot:
    broken = b.node("n2", events=(b.xid_event("n2", 79),))
    return b.snapshot(broken, jobs=[b.job()], spares=("n6", "n7", "n8"), **values)


def test_a_node_that_fails_is_drained_and_its_gang_stays() -> None:
    (decision,) = decided(faulty(paused_jobs=PAUSED))
    assert (decision.to_state, decision.because) == (NodeState.QUARANTINED, Because.PAUSED)
    assert b.plan_as(QuarantinePlan, decision.plan).nodes == ("n2",)
    assert "job 7 is paused by an operator: an upgrade (alice); `understudy job resume 7 REASON`" in decision.reason


def test_its_gang_moves_when_the_pause_ends() -> None:
    out = b.node("n2", NodeState.QUARANTINED, slurm=b.slurm_node("n2", "ALLOCATED", ["DRAIN"], "understudy: x"))
    snapshot = b.snapshot(out, jobs=[b.job()], spares=("n6", "n7", "n8"), paused_jobs=PAUSED)
    (waits,) = [one for one in decided(snapshot) if one.row == 13]
    assert (waits.plan, waits.because) == (None, Because.PAUSED)
    (moves,) = [one for one in decided(b.changed(snapshot, paused_jobs={})) if one.row == 13]
    assert b.plan_as(PoolSwapPlan, moves.plan).spares == ("n6",)


def test_a_hang_is_left_alone() -> None:
    hung = Finding(Signal.GANG_HUNG, "hang.x", "n2", b.NOW, "the gang hangs", job=b.job().key)
    snapshot = b.snapshot(jobs=[b.job()], spares=("n6", "n7", "n8"), paused_jobs=PAUSED)
    (decision,) = decide(snapshot, [hung], b.config())
    assert (decision.action, decision.because) == (Action.NOTHING, Because.PAUSED)


def test_slurms_hold_of_the_job_stays() -> None:
    held = b.job(state="PENDING", nodes=(), reason="launch_failed_requeued_held", restart_count=1, submit_at=500)
    refusal = Refusal("n1", 7, 0, 499.0, 499.5, "unfit")
    snapshot = b.snapshot(jobs=[held], refusals=(refusal,))
    assert [one.action for one in decided(snapshot)] == [Action.RELEASE_JOB]
    (decision,) = decided(b.changed(snapshot, paused_jobs={held.key: "x"}))
    assert (decision.action, decision.because) == (Action.NOTHING, Because.PAUSED)


@pytest.mark.parametrize(("requeues", "goes_on"), [(0, False), (1, True)])
def test_what_began_stops_but_not_between_two_attempts(requeues: int, goes_on: bool) -> None:
    (decision,) = decided(faulty())
    assert decision.plan is not None
    steps = tuple(
        RecoveryStep(i, name, StepStatus.PLANNED, attempts=requeues if name is StepName.REQUEUE_JOB else 0)
        for i, name in enumerate(decision.plan.steps)
    )
    running = Recovery(9, decision.plan, RecoveryStatus.RUNNING, b.NOW - 1, steps)
    snapshot = faulty(recoveries=(running,), paused_jobs=PAUSED)
    assert course(running, snapshot, []).may_act == goes_on
    assert course(running, b.changed(snapshot, paused_jobs={}), []).may_act


def test_a_later_job_of_the_same_id_is_another_one() -> None:
    key = b.job().key
    set_back = JobPause("x", "alice", key.submit_at - 3600.0, None, key.submit_at)
    assert set_back.concerns(key), "asked for while the clock of the control plane was an hour behind"
    assert not set_back.concerns(key._replace(submit_at=key.submit_at + 60)), "another job with the same id"
