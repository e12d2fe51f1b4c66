"""A swap may have ended the attempt of its gang: what follows for its spares, its owner and a pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.recovery_recheck import (
    course,
    ended_by_its_owner,
    left_by_its_owner,
    overtaken_in_its_array,
    undo_steps,
)
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import (
    PoolSwapPlan,
    QuarantinePlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
)
from understudy_controlplane.fleet.recovery import StepStatus as Is
from understudy_controlplane.fleet.slurm import ARRAY_LIMIT
from understudy_controlplane.fleet.snapshot import Snapshot

WORD = b.config().jobs.opt_in_word
SINCE_START = 10.0
RESTARTED: dict[str, Any] = {"state": "PENDING", "nodes": (), "restart_count": 1, "submit_at": int(b.NOW) - 30}


def swap(requeue: Is) -> Recovery:
    """Swap of job 7 from n2 to n6. All before its requeue is done."""
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
    assert course(LOST, scene(LOST, paused_jobs=paused, read_at=b.NOW - 20), []).may_act, "not known"
    assert isinstance(LOST.plan, PoolSwapPlan)
    of_dead_node = replace(LOST, plan=msgspec.structs.replace(LOST.plan, dead_nodes=("n2",)))
    assert course(of_dead_node, scene(of_dead_node, paused_jobs=paused), []).may_act, "it runs on in name only"


@pytest.mark.parametrize(
    ("changes", "may_act"),
    [
        ({}, False),
        ({"heard_at": b.NOW - 60}, True),
        ({"events": (b.xid_event("n2", 79),)}, True),
    ],
    ids=["nothing is found any more", "it is not heard", "its fault is still there"],
)
def test_a_node_that_looks_well_again_is_not_drained_for_what_an_earlier_process_had_found(
    changes: dict[str, Any], may_act: bool
) -> None:
    """The process died before its call, or in it: until the call is over it is not known whether the node is drained.
    Then the recovery is overtaken.
    """
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n2",), drain_reason="understudy: dead")
    step = RecoveryStep(0, StepName.DRAIN_NODES, Is.INTENDED, 1, b.NOW - 9)
    recovery = Recovery(9, plan, RecoveryStatus.RUNNING, b.NOW - 9, (step,))
    node = b.node("n2", record=b.record("n2", NodeState.QUARANTINED, since=b.NOW - 9), **changes)
    snapshot = b.snapshot(node, recoveries=(recovery,), started_at=b.NOW - 6)
    found = course(recovery, snapshot, detect(snapshot, b.config()))
    assert (found.may_act, found.ending) == (may_act, None)
    later = b.changed(snapshot, now=b.NOW + 2, read_at=b.NOW + 2)
    after = course(recovery, later, detect(later, b.config()))
    assert (after.ending is not None) is not may_act
