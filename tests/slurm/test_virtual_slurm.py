"""Manners of the fake that the contract cannot ask of a shared real cluster, because there they do damage.

Each was seen on Slurm 22.05.
"""

from __future__ import annotations

import pytest

from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.fleet.slurm import SlurmJob


@pytest.fixture
def slurm() -> VirtualSlurm:
    return VirtualSlurm(["n1", "n2", "n3"])


def gang(slurm: VirtualSlurm) -> SlurmJob:
    return slurm.jobs()[0]


def test_a_job_started_in_the_second_of_its_kill_fails() -> None:
    slurm = VirtualSlurm(["n1", "n2", "n3"], scheduler_tick_seconds=0.25)
    job_id = slurm.submit("nobody", 2)
    slurm.advance(1.0)
    slurm.requeue_job(job_id)
    slurm.advance(0.3)
    slurm.start_job(job_id)
    slurm.advance(0.5)
    assert gang(slurm).state == "FAILED"


def test_a_dead_node_holds_a_requeued_job_and_then_spoils_it(slurm: VirtualSlurm) -> None:
    job_id = slurm.submit("nobody", 2)
    slurm.advance(2)
    slurm.kill_node("n2")
    slurm.requeue_job(job_id)
    slurm.advance(60)
    assert (gang(slurm).state, gang(slurm).nodes) == ("COMPLETING", ("n2",))
    slurm.down_nodes(["n2"], "dead")
    assert gang(slurm).state == "PENDING"
    slurm.advance(5)
    assert gang(slurm).state == "FAILED"


@pytest.mark.parametrize("apart_seconds", [0, 5])
def test_a_gang_whose_nodes_are_all_set_down_is_spoilt(apart_seconds: float) -> None:
    slurm = VirtualSlurm([f"n{number}" for number in range(1, 7)])
    slurm.submit("nobody", 3)
    slurm.advance(2)
    for name in ("n1", "n2", "n3"):
        slurm.kill_node(name)
    for name in ("n1", "n2", "n3"):
        slurm.down_nodes([name], "dead")
        slurm.advance(apart_seconds)
    assert gang(slurm).restart_count == 1
    slurm.advance(5)
    assert gang(slurm).state == "FAILED"


def test_a_dead_node_that_is_set_down_after_the_epilogs_of_the_others_spoils_the_job(slurm: VirtualSlurm) -> None:
    slurm.submit("nobody", 3)
    slurm.advance(2)
    for name in ("n2", "n3"):
        slurm.kill_node(name)
    slurm.down_nodes(["n2"], "dead")
    slurm.advance(5)
    assert (gang(slurm).state, gang(slurm).nodes) == ("COMPLETING", ("n3",))
    slurm.down_nodes(["n3"], "dead")
    slurm.resume_node("n2")
    slurm.resume_node("n3")
    slurm.start_node("n2")
    slurm.start_node("n3")
    slurm.advance(5)
    assert gang(slurm).state == "FAILED"


def test_slurm_notices_a_dead_node_after_five_minutes_by_itself(slurm: VirtualSlurm) -> None:
    slurm.submit("nobody", 2)
    slurm.advance(2)
    slurm.kill_node("n1")
    slurm.advance(290)
    assert gang(slurm).state == "RUNNING"
    slurm.advance(20)
    node = slurm.nodes()[0]
    assert (node.down, node.reason, node.reason_user) == (True, "Not responding", "slurm")
    assert (gang(slurm).state, gang(slurm).restart_count) == ("PENDING", 1)


def test_a_finished_job_is_forgotten_after_five_minutes(slurm: VirtualSlurm) -> None:
    job_id = slurm.submit("nobody", 1)
    slurm.advance(2)
    slurm.end(job_id, "FAILED")
    slurm.advance(200)
    assert gang(slurm).state == "FAILED"
    slurm.advance(110)
    assert slurm.jobs() == []


def test_a_reservation_ends_when_its_time_is_over(slurm: VirtualSlurm) -> None:
    slurm.create_reservation("seats", ["n1"], "nobody", 1)
    job_id = slurm.submit("nobody", 2)
    slurm.set_job_reservation(job_id, "seats")
    slurm.advance(59)
    assert gang(slurm).state == "PENDING"
    assert len(slurm.reservations()) == 1
    slurm.advance(3)
    assert slurm.reservations() == []
    assert (gang(slurm).reservation, gang(slurm).state) == ("", "RUNNING")


def test_a_failed_job_that_slurm_remembers_can_be_requeued(slurm: VirtualSlurm) -> None:
    job_id = slurm.submit("nobody", 1)
    slurm.advance(2)
    slurm.end(job_id, "FAILED")
    slurm.requeue_failed_job(job_id)
    assert (gang(slurm).state, gang(slurm).restart_count) == ("PENDING", 1)
