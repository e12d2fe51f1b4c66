"""A managed gang that others requeued, and that waits because of a fault, gets what the pool holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal, refuse
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import PoolSwapPlan, RecoveryStatus
from understudy_controlplane.store.queries import Queries

pytestmark = [pytest.mark.integration, pytest.mark.patient]

UNCONFIRMED = {"dead_unconfirmed_seconds": 120.0}
"""Default of a site: no hook or launcher confirms that the node of a plain job is dead."""


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path, silence=UNCONFIRMED)


def test_a_gang_that_slurm_requeued_for_a_dead_slurmd_gets_the_spare(rehearsal: Rehearsal) -> None:
    """The agent reports, so the control plane does not take the node for dead; Slurm does."""
    rehearsal.fake.hold_job(rehearsal.hungry)
    rehearsal.fake.slurmd_timeout_seconds = 60
    rehearsal.fake.kill_node("n3")
    rehearsal.probe = lambda node: node.name != "n3"
    rehearsal.run_until(rehearsal.ended, 90)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.SUCCEEDED
    assert isinstance(recovery.plan, PoolSwapPlan)
    assert recovery.plan.restart_count == 0
    assert rehearsal.line.effects["requeue_job 1"] == 0
    assert rehearsal.line.effects["down_node n3"] == 0


def test_the_control_plane_is_faster_than_slurms_timeout_so_that_no_job_takes_the_seats(rehearsal: Rehearsal) -> None:
    """Slurm ends the job for a silent node 60 s after its death at the earliest. Then any job may get its seats."""
    rehearsal.fake.slurmd_timeout_seconds = 60
    rehearsal.kill_node("n3")
    rehearsal.run(45)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    rehearsal.run_until(rehearsal.ended, 15)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert rehearsal.hungry_state() == "PENDING"
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


def requeue_for_a_dead_node(rehearsal: Rehearsal, mode: str = "act") -> None:
    """Slurm does, while no control plane looks, and no other job waits."""
    rehearsal.fake.hold_job(rehearsal.hungry)
    away_until_slurm_requeues(rehearsal)
    rehearsal.restart_control_plane(mode)


def away_until_slurm_requeues(rehearsal: Rehearsal) -> None:
    rehearsal.kill_node("n3")
    rehearsal.fake.slurmd_timeout_seconds = 5
    for _ in range(20):
        rehearsal.fake.advance(1)
    assert rehearsal.gang_state() == ("PENDING", 1)


def test_a_control_plane_that_was_away_meanwhile_starts_the_gang(rehearsal: Rehearsal) -> None:
    requeue_for_a_dead_node(rehearsal)
    rehearsal.run_until(rehearsal.ended, 60)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]


@pytest.mark.parametrize("seconds_later", [0, 2])
def test_a_gang_that_its_owner_requeues_for_a_fault_gets_the_spare_at_once(
    rehearsal: Rehearsal, seconds_later: float
) -> None:
    """Before or after the fault is known."""
    rehearsal.line.before = refuse("requeue_job")  # the control plane is slower than the owner
    rehearsal.fail("n3")
    rehearsal.run(seconds_later) if seconds_later else None
    rehearsal.fake.requeue_job(rehearsal.gang)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 30)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]


def test_a_node_that_an_administrator_drained_before_the_requeue_is_replaced_and_left_alone(
    rehearsal: Rehearsal,
) -> None:
    rehearsal.fake.hold_job(rehearsal.hungry)
    rehearsal.fake.drain_by("alice", "n2", "bad fan")
    rehearsal.run(5)
    rehearsal.fake.requeue_job(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended, 30)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]
    node = next(one for one in rehearsal.fake.nodes() if one.name == "n2")
    assert (node.reason, node.reason_user) == ("bad fan", "alice")


def test_without_a_spare_it_waits_and_gets_the_first_that_comes(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, silence=UNCONFIRMED, spares={"count": 3, "no_spare": "wait"})
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    rehearsal.run(3)
    requeue_for_a_dead_node(rehearsal)
    rehearsal.run(30)
    assert rehearsal.recoveries() == []
    waits = "no fitting spare for job 1: 0 free, 1 needed; it waits until there is one"
    assert any(waits in one for one in reasons(rehearsal))
    add_tokens(rehearsal.control_plane.engine)
    api = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
    explained = api.get("/v1/explain/jobs/1").json()
    assert "; job 1 ran on n3, which is out of service, and waits in Slurm's queue; Slurm gives" in explained["is_now"]
    assert any(waits in one["reason"] for one in explained["decisions"])
    (incident,) = api.get("/v1/incidents").json()["items"]
    assert incident["subject"] == "n3"
    assert any("job 1 ran on n3" in one["summary"] for one in incident["findings"])
    rehearsal.fake.resume_node("n7")
    rehearsal.run_until(rehearsal.ended, 60)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n7"]


def test_nodes_that_another_job_took_meanwhile_are_replaced_as_well(rehearsal: Rehearsal) -> None:
    away_until_slurm_requeues(rehearsal)
    assert rehearsal.hungry_state() == "RUNNING"
    rehearsal.restart_control_plane()
    rehearsal.run_until(rehearsal.ended, 60)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n4", "n6", "n7", "n8"]


def test_a_held_gang_is_left_alone_until_it_is_released(rehearsal: Rehearsal) -> None:
    rehearsal.fake.drain_by("alice", "n5", "new cables")
    rehearsal.fake.hold_job(rehearsal.hungry)
    away_until_slurm_requeues(rehearsal)
    rehearsal.fake.hold_job(rehearsal.gang)
    rehearsal.restart_control_plane()
    rehearsal.run(120)
    assert rehearsal.recoveries() == []
    rehearsal.fake.release_job(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended, 60)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]


def test_a_gang_that_waits_for_another_reason_than_a_fault_is_left_alone(rehearsal: Rehearsal) -> None:
    """Also where one of the nodes on which it ran fails later, under the job that has got it."""
    rehearsal.fake.requeue_job(rehearsal.gang)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("PENDING", 1)
    hungry = next(one for one in rehearsal.fake.jobs() if one.job_id == rehearsal.hungry)
    given = next(name for name in hungry.nodes if name != "n5")  # the gang never had n5
    rehearsal.fail(given)
    rehearsal.run(20)
    assert rehearsal.recoveries() == []
    assert rehearsal.state_of(given) is NodeState.QUARANTINED


def test_a_gang_whose_node_fails_before_slurm_starts_it_again_gets_a_spare(rehearsal: Rehearsal) -> None:
    """Its user has requeued it, and Slurm waits for two minutes."""
    rehearsal.fake.hold_job(rehearsal.hungry)
    rehearsal.fake.requeue_job(rehearsal.gang)
    rehearsal.run(60)
    rehearsal.fail("n3")
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert "n3" not in rehearsal.gang_nodes()


def test_a_cancelled_gang_never_runs_again(rehearsal: Rehearsal) -> None:
    away_until_slurm_requeues(rehearsal)
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.restart_control_plane()
    rehearsal.run(200)
    assert rehearsal.recoveries() == []
    assert rehearsal.gang_state()[0] == "CANCELLED"


def test_an_operator_who_cancels_it_is_obeyed(rehearsal: Rehearsal) -> None:
    requeue_for_a_dead_node(rehearsal)
    rehearsal.line.before = refuse("start_job")
    rehearsal.run_until(rehearsal.recoveries, 30)
    (recovery,) = rehearsal.recoveries()
    requests = rehearsal.control_plane.stores.requests
    requests.ask(Verb.CANCEL, str(recovery.id), "I look at it first", "alice", rehearsal.clock.now())
    rehearsal.run(90)
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.CANCELLED]


@pytest.mark.parametrize("mode", ["observe", "approve"])
def test_a_mode_that_does_not_act_changes_nothing(rehearsal: Rehearsal, mode: str) -> None:
    requeue_for_a_dead_node(rehearsal, mode)
    rehearsal.line.effects.clear()
    rehearsal.run(30)
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.AWAITS_APPROVAL] * (mode == "approve")
    assert rehearsal.gang_state() == ("PENDING", 1)
    assert any("job 1 ran on n3" in one for one in reasons(rehearsal))
    assert not rehearsal.line.effects


def test_the_pool_takes_no_node_that_a_gang_waits_for(tmp_path: Path) -> None:
    """It would be filled with the nodes of the very gang that has lost one."""
    rehearsal = Rehearsal(tmp_path, silence=UNCONFIRMED)
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    rehearsal.run(3)
    requeue_for_a_dead_node(rehearsal)
    rehearsal.run(100)
    assert not {"n1", "n2", "n4"} & {*rehearsal.pool()}


def reasons(rehearsal: Rehearsal) -> list[str]:
    decisions = Queries(rehearsal.engine).decisions(1000)
    return [str(one["reason"]) for one in decisions]
