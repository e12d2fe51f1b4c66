"""`understudy leave-slurm`: Slurm is as it was before the control plane came, but for what is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.cli.leave_slurm import Leaving, Stored, stored
from understudy_controlplane.fleet.node import NodeRecord
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
from understudy_controlplane.fleet.slurm import JobRequest

POOL = "understudy_spares"
MINUTES = 60


@pytest.fixture
def slurm() -> VirtualSlurm:
    made = VirtualSlurm(["n1", "n2", "n3"])
    made.create_reservation(POOL, ["n3"], "root", MINUTES)
    made.create_reservation("maintenance", ["n1"], "root", MINUTES)
    return made


def left(slurm: VirtualSlurm, stored: Stored | None = None, resume_nodes: bool = False) -> tuple[list[str], list[str]]:
    """Lines, and what stays."""
    leaving = Leaving(slurm, POOL, stored or Stored(), slurm.advance)
    return list(leaving.lines(resume_nodes)), leaving.left


def test_reservations_of_others_stay(slurm: VirtualSlurm) -> None:
    assert left(slurm) == ([f"reservation {POOL}: deleted"], [])
    assert [one.name for one in slurm.reservations()] == ["maintenance"]


def test_weights_are_as_before_and_one_that_an_administrator_has_set_since_stays(slurm: VirtualSlurm) -> None:
    slurm.set_weight("n1", 9)
    slurm.set_weight("n2", 5)
    raised = {name: NodeRecord(name, weight=9, weight_before=2) for name in ("n1", "n2")}
    lines, stays = left(slurm, Stored(raised))
    assert ("node n1: given its weight 2 again" in lines, stays) == (True, [])
    assert {node.name: node.weight for node in slurm.nodes()} == {"n1": 2, "n2": 5, "n3": 1}


def test_a_job_that_waits_for_its_seats_waits_for_them_no_longer(slurm: VirtualSlurm) -> None:
    job_id = slurm.submit("me", 3)
    seats = f"{SEATS_PREFIX}{job_id}"
    slurm.create_reservation(seats, ["n2"], "me", MINUTES)
    (job,) = slurm.jobs()
    slurm.set_job_reservation(job.address, seats)
    lines, stays = left(slurm, Stored(reservation_before={job_id: "maintenance"}))
    assert lines[0] == f"job {job_id}: taken out of reservation {seats}"
    assert (f"reservation {seats}: deleted" in lines, stays) == (True, [])
    assert [one.reservation for one in slurm.jobs()] == ["maintenance"]


def test_the_control_planes_own_jobs_are_cancelled_and_their_reservations_deleted(slurm: VirtualSlurm) -> None:
    hold = f"{NODE_HOLD_PREFIX}n2"
    slurm.create_reservation(hold, ["n2"], "root", MINUTES)
    slurm.submit_job(JobRequest("understudy-validate", "n2", "train", hold, "root", "", "", 60, "/dev/null"))
    slurm.advance(2)
    assert left(slurm)[1] == []
    assert [one.name for one in slurm.reservations()] == ["maintenance"]


def test_drained_nodes_are_listed_and_resumed_on_request(slurm: VirtualSlurm) -> None:
    slurm.drain_node("n1", "understudy: xid.79")
    slurm.drain_node("n2", "new cables")
    assert "node n1 stays out of service: understudy: xid.79" in left(slurm)[0][-1]
    assert left(slurm, resume_nodes=True)[0] == ["node n1: resumed"]
    assert ["DRAIN" in one.flags for one in slurm.nodes()] == [False, True, False]


@pytest.mark.parametrize("url", ["sqlite:////nowhere/fleet.db", "postgresql+nothing://x/y"])
def test_a_database_that_cannot_be_read_is_named_and_the_rest_is_done(url: str, slurm: VirtualSlurm) -> None:
    lines, stays = left(slurm, stored(b.config(server={"database": url})))
    assert lines == [f"reservation {POOL}: deleted"]
    assert "weights are not restored: database" in stays[0]


def test_what_the_database_knows_is_found(tmp_path: Path) -> None:
    assert stored(b.config(server={"database": new_database(tmp_path / "fleet.db")})) == Stored({}, {})
