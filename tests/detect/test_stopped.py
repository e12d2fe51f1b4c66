"""Gangs wait in Slurm's queue because a fault has stopped them, or for another reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect.stopped import stopped
from understudy_controlplane.fleet.decision import Because
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import Job, LastAttempt
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import Snapshot

RAN_ON = ("n1", "n2", "n3", "n4")
REQUEUED_AT = int(b.NOW) - 10


def out(state: str = "DOWN", flags: tuple[str, ...] = (), reason: str = "Not responding", at: int = 0) -> SlurmNode:
    shown = b.slurm_node("n3", state, flags, reason, "root")
    return replace(shown, reason_at=at or REQUEUED_AT)


def scene(*nodes: NodeView, job: dict[str, Any] | None = None, **values: Any) -> Snapshot:
    """A gang that ran on n1 to n4 waits; n3 is down in Slurm, unless `nodes` say otherwise."""
    default: dict[str, Any] = {
        "state": "PENDING",
        "reason": "BeginTime",
        "nodes": (),
        "node_count": 4,
        "restart_count": 1,
    }
    waiting = b.job(**(default | {"submit_at": REQUEUED_AT} | (job or {})))
    waiting = replace(waiting, key=b.job().key)  # a requeue renews the submit time
    values = {"last_attempts": {waiting.key: LastAttempt(0, RAN_ON, 41)}} | values
    return b.snapshot(*(nodes or [b.node("n3", slurm=out())]), jobs=[waiting], spares=("n7", "n8"), **values)


def found(snapshot: Snapshot) -> list[Finding]:
    return [*stopped(snapshot)]


@pytest.mark.parametrize(
    "reason",
    [
        "BeginTime",
        "Resources",
        "Priority",
        "None",
        "NodeDown",
        "ReqNodeNotAvail,_UnavailableNodes:n3",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
    ],
)
def test_a_gang_that_waits_for_nodes_was_stopped_by_the_node_that_is_out(reason: str) -> None:
    (finding,) = found(scene(job={"reason": reason}))
    assert (finding.node, finding.nodes) == ("n3", ("n3",))
    assert "job 7 ran on n3" in finding.summary


@pytest.mark.parametrize(
    "job",
    [
        {"reason": "JobHeldUser", "priority": 0},
        {"reason": "JobHeldAdmin", "priority": 0},
        {"reason": "launch_failed_requeued_held", "priority": 0},
        {"reason": "Dependency"},
        {"reason": "AssocGrpGRES"},
        {"reason": "JobArrayTaskLimit"},
        {"reason": "PartitionDown"},
        {"reason": "ReservationDeleted"},
        {"reason": "BeginTime", "start_at": REQUEUED_AT + 7200},  # its owner has put it off
        {"state": "CANCELLED"},
        {"state": "COMPLETED"},
        {"state": "RUNNING", "nodes": RAN_ON},
    ],
)
def test_a_job_that_waits_for_anything_else_is_left_alone(job: dict[str, Any]) -> None:
    assert found(scene(job=job)) == []


@pytest.mark.parametrize(
    "node",
    [
        b.node("n3", NodeState.QUARANTINED),
        b.node("n3", NodeState.OPERATOR_HOLD),
        b.node("n3", NodeState.FOREIGN_DRAIN, out("IDLE", ("DRAIN",), "NHC: bad disk")),
        b.node("n3", slurm=out("IDLE", ("DRAIN",), "Prolog error", REQUEUED_AT + 1)),
        b.node("n3", slurm=out("IDLE", ("NOT_RESPONDING",), ""), slurmd_silent_since=b.NOW - 60),
    ],
)
def test_it_does_not_matter_who_took_the_node_out(node: NodeView) -> None:
    assert len(found(scene(node))) == 1


@pytest.mark.parametrize(
    "node",
    [
        b.node("n3"),
        b.node("n3", NodeState.SUSPECT),
        b.node("n3", slurm=out("IDLE", ("REBOOT_REQUESTED",), "new kernel")),
        b.node("n3", slurm=out("IDLE", ("MAINTENANCE",), "")),
        b.node("n5", slurm=out()),  # it did not run there
    ],
)
def test_without_a_node_that_is_out_no_fault_is_known(node: NodeView) -> None:
    assert found(scene(node)) == []


def test_where_a_dead_node_has_spoilt_the_requeue_its_time_is_not_known_and_the_gang_counts_as_stopped() -> None:
    """Slurm keeps the submit time that the job had before."""
    late = b.node("n3", slurm=out(at=REQUEUED_AT + 100))
    assert [len(found(scene(late, job={"submit_at": at}, now=b.NOW + 200))) for at in (REQUEUED_AT, 500)] == [0, 1]


def test_a_node_that_failed_long_after_the_requeue_did_not_stop_it() -> None:
    """It was preempted, and waits for the job that has its nodes."""
    late = out(at=REQUEUED_AT + 100)
    assert found(scene(b.node("n3", slurm=late), now=b.NOW + 200)) == []


@pytest.mark.parametrize(
    ("failed_after", "eligible_after", "others", "expected"),
    [
        (100, 121, [], 1),
        (130, 121, [], 0),
        (100, None, [], 0),
        (100, 121, [b.job(job_id=8, nodes=("n3",), start_at=REQUEUED_AT + 1, comment="", managed=False)], 0),
        (20, 121, [b.job(job_id=8, nodes=("n3",), start_at=REQUEUED_AT + 1, comment="", managed=False)], 1),
    ],
    ids=["in Slurm's delay", "after it", "delay not known", "under another job", "just after the requeue"],
)
def test_a_node_that_fails_while_slurm_still_delays_the_start_has_stopped_it_unless_others_have_got_the_node(
    failed_after: int, eligible_after: int | None, others: list[Job], expected: int
) -> None:
    eligible_at = None if eligible_after is None else REQUEUED_AT + eligible_after
    late = b.node("n3", slurm=out(at=REQUEUED_AT + failed_after))
    waiting = scene(late, job={"reason": "Resources", "eligible_at": eligible_at})
    jobs = [*waiting.jobs.values(), *others]
    last = waiting.progress.last_attempts
    seen = b.snapshot(*waiting.nodes.values(), jobs=jobs, last_attempts=last, now=b.NOW + 200)
    assert len(found(seen)) == expected


def test_a_job_that_is_about_to_pend_is_found_at_once() -> None:
    """Before a waiting job takes its nodes."""
    completing = {"state": "COMPLETING", "reason": "NodeDown", "nodes": ("n1",), "submit_at": 500}
    assert len(found(scene(job=completing))) == 1
    assert found(scene(job=completing | {"priority": 0})) == []


def test_a_dead_node_that_keeps_it_completing_is_waited_for() -> None:
    """Slurm starts it nowhere before that node is down."""
    completing = {"state": "COMPLETING", "nodes": ("n3",), "submit_at": 500}
    silent = b.node("n3", NodeState.QUARANTINED, slurmd_silent_since=b.NOW - 60)
    assert found(scene(silent, job=completing)) == []
    down = b.node("n3", NodeState.QUARANTINED, out(), slurmd_silent_since=b.NOW - 60)
    assert len(found(scene(down, job=completing))) == 1


def plan_of(snapshot: Snapshot) -> PoolSwapPlan:
    (decision,) = (one for one in decide(snapshot, found(snapshot), b.config()) if isinstance(one.plan, PoolSwapPlan))
    return b.plan_as(PoolSwapPlan, decision.plan)


def test_it_gets_its_healthy_nodes_back_and_a_spare_and_goes_on_from_its_last_attempt() -> None:
    plan = plan_of(scene())
    assert (plan.seats, plan.spares) == (("n1", "n2", "n4", "n7"), ("n7",))
    assert (plan.restart_count, plan.last_step) == (0, 41)
    assert (plan.nodes, plan.dead_nodes, plan.leaving) == ((), (), ("n3",))


def test_a_quarantined_node_is_the_plans_to_drain() -> None:
    assert plan_of(scene(b.node("n3", NodeState.QUARANTINED))).nodes == ("n3",)


def test_a_node_that_a_new_job_has_is_replaced_and_one_that_it_shared_is_not() -> None:
    new = b.job(job_id=8, nodes=("n1",), start_at=REQUEUED_AT + 1, comment="", managed=False)
    old = b.job(job_id=9, nodes=("n2",), start_at=REQUEUED_AT - 100, comment="", managed=False)
    seen = scene()
    seen = b.snapshot(
        *seen.nodes.values(),
        jobs=[*seen.jobs.values(), new, old],
        last_attempts=seen.progress.last_attempts,
        spares=("n7",),
    )
    assert plan_of(seen).seats == ("n2", "n4", "n7", "n8")


@pytest.mark.parametrize("spares", [("n7", "n8"), ("n7",)])
def test_a_node_that_was_removed_from_slurm_is_replaced_too(spares: tuple[str, ...]) -> None:
    """It comes first among the gang's last nodes, and nothing is known of it."""
    seen = scene(b.node("n3", slurm=out()))
    last = {key: LastAttempt(0, ("gone1", "n2", "n3", "n4"), 41) for key in seen.progress.last_attempts}
    seen = b.changed(
        seen, last_attempts=last, nodes={k: v for k, v in seen.nodes.items() if k not in {"n1", "n5", "n6"}}
    )
    if len(spares) == 1:
        seen = replace(seen, nodes={name: one for name, one in seen.nodes.items() if name != "n8"})
        (decision,) = (one for one in decide(seen, found(seen), b.config()) if one.row == 300)
        assert "1 free, 2 needed" in decision.reason
        return
    plan = plan_of(seen)
    assert (plan.seats, plan.nodes) == (("n2", "n4", "n7", "n8"), ())
    assert sorted(plan.leaving) == ["gone1", "n3"]


def test_without_a_spare_the_decision_names_the_job_and_says_what_it_waits_for() -> None:
    seen = b.snapshot(
        *(b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in ("n5", "n6", "n7", "n8")),
        b.node("n3", slurm=out()),
        jobs=[*scene().jobs.values()],
        last_attempts=scene().progress.last_attempts,
    )
    (decision,) = decide(seen, found(seen), b.config())
    assert decision.because is Because.NO_SPARE
    assert "no fitting spare or idle node for job 7: 0 free, 1 needed; it waits until there is one" in decision.reason
    assert decision.subject == "n3"
