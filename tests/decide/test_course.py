"""Whether a swap has ended the attempt of its gang: what follows for its spares, its owner and a pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.decide.course import (
    course,
    ended_by_its_owner,
    left_by_its_owner,
    overtaken_in_its_array,
    undo_steps,
)
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import PoolSwapPlan, Recovery, RecoveryStatus, RecoveryStep, StepName
from understudy_controlplane.fleet.recovery import StepStatus as Is
from understudy_controlplane.fleet.slurm import ARRAY_LIMIT
from understudy_controlplane.fleet.snapshot import Snapshot

WORD = b.config().jobs.opt_in_word
SINCE_START = 10.0
RESTARTED: dict[str, Any] = {"state": "PENDING", "nodes": (), "restart_count": 1, "submit_at": int(b.NOW) - 30}


def swap(requeue: Is) -> Recovery:
    """Of job 7 from n2 to n6. All before its requeue is done."""
    broken = b.node("n2", events=(b.xid_event("n2", 79),))
    before = b.snapshot(broken, jobs=[b.job()], spares=("n6", "n7", "n8"))
    (plan,) = (b.plan_as(PoolSwapPlan, one.plan) for one in decide(before, detect(before, b.config()), b.config()))
    at = plan.steps.index(StepName.REQUEUE_JOB)
    seated = {StepName.DRAIN_NODES, StepName.HOLD_SEATS, StepName.TAKE_SPARES, StepName.BIND_JOB}
    steps = tuple(
        RecoveryStep(i, name, Is.DONE if i < at else Is.PLANNED, attempts=int(name in seated))
        for i, name in enumerate(plan.steps)
    )
    found = Recovery(9, plan, RecoveryStatus.RUNNING, b.NOW - 61, steps)
    return found.with_step(RecoveryStep(at, StepName.REQUEUE_JOB, requeue, 1, b.NOW - 50))


LOST = swap(Is.INTENDED)
"""The process died just before the call: another one goes on, and Slurm shows the gang as before."""

MADE = swap(Is.DONE)


def scene(recovery: Recovery, state: NodeState = NodeState.QUARANTINED, **changes: Any) -> Snapshot:
    out = b.slurm_node("n2", "IDLE", ["DRAIN"], "understudy: x") if state is NodeState.QUARANTINED else None
    record = b.record("n2", state, cleared_at=b.NOW - 1)
    jobs = [b.job(**changes.pop("job", {}))]
    started_at = b.NOW - SINCE_START
    return b.snapshot(
        b.node("n2", record=record, slurm=out), jobs=jobs, recoveries=(recovery,), started_at=started_at, **changes
    )


def undone(recovery: Recovery, snapshot: Snapshot) -> tuple[StepName, ...]:
    ending = course(recovery, snapshot, []).ending
    assert ending is not None
    return undo_steps(recovery, ending)


CANCEL = {9: Request(1, "recovery 9", Verb.CANCEL, "wrong node", "alice", b.NOW - 1)}


@pytest.mark.parametrize("change", [{"state": NodeState.IN_SERVICE}, {"cancels": CANCEL}])
def test_where_the_requeue_was_lost_in_a_crash_the_spares_go_back_before_their_seats_are_released(
    change: dict[str, Any],
) -> None:
    assert StepName.RETURN_SPARES in undone(LOST, scene(LOST, **change))


def test_what_an_operator_cancels_after_the_requeue_leaves_the_spares_to_the_gang_that_waits_for_nodes() -> None:
    snapshot = scene(MADE, cancels=CANCEL, job=RESTARTED)
    assert StepName.RETURN_SPARES not in undone(MADE, snapshot)


def test_the_spares_of_a_gang_that_does_not_run_next_go_back_also_after_its_requeue() -> None:
    over = b.slurm_job(**RESTARTED | {"state": "CANCELLED"})
    waits = b.slurm_job(**RESTARTED | {"reason": ARRAY_LIMIT})
    for ending in (ended_by_its_owner(MADE, over), overtaken_in_its_array(MADE, waits)):
        assert ending is not None
        assert StepName.RETURN_SPARES in undo_steps(MADE, ending)


def test_spares_whose_seats_are_released_already_are_another_gangs_perhaps() -> None:
    released = replace(
        MADE,
        steps=tuple(replace(one, status=Is.DONE) if one.name is StepName.RELEASE_SEATS else one for one in MADE.steps),
    )
    ending = ended_by_its_owner(released, b.slurm_job(**RESTARTED | {"state": "CANCELLED"}))
    assert ending is not None
    assert StepName.RETURN_SPARES not in undo_steps(released, ending)


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_an_owner_who_opts_out_while_the_requeue_is_lost_is_heard_and_the_spares_go_back(state: str) -> None:
    ending = left_by_its_owner(LOST, b.slurm_job(comment="", state=state), WORD)
    assert ending is not None
    assert StepName.RETURN_SPARES in undo_steps(LOST, ending)


def test_an_attempt_that_was_ended_is_started_again_whatever_its_owner_does() -> None:
    assert left_by_its_owner(MADE, b.slurm_job(**RESTARTED | {"comment": ""}), WORD) is None
    completing = b.slurm_job(comment="", state="COMPLETING")
    assert left_by_its_owner(LOST, completing, WORD) is None


def test_a_pause_keeps_a_requeue_that_was_lost_from_being_made() -> None:
    paused = {b.job().key: "an upgrade (alice)"}
    assert not course(LOST, scene(LOST, paused_jobs=paused), []).may_act
    assert course(LOST, scene(LOST, paused_jobs=paused, job=RESTARTED), []).may_act, "Slurm has taken it"
    assert course(LOST, scene(LOST, paused_jobs=paused, slurm_read_at=b.NOW - 20), []).may_act, "not known"
    assert isinstance(LOST.plan, PoolSwapPlan)
    of_dead_node = replace(LOST, plan=msgspec.structs.replace(LOST.plan, dead_nodes=("n2",)))
    assert course(of_dead_node, scene(of_dead_node, paused_jobs=paused), []).may_act, "it runs on in name only"
