"""How the jobs of a user are, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.dashboard.own_jobs import own_jobs, own_maintenance
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.maintenance import Maintenance, Stage
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject

STILL = OpenIncident(1, Subject.of_gang(b.job().key), "hang", "gang_hung_unnamed", "no step ends", b.NOW)


def record(job: Job, paused: str = "") -> dict[str, Any]:
    return {"job_id": job.key.job_id, "submit_at": job.key.submit_at, "paused": paused}


def fleet(job: Job, state: NodeState = NodeState.IN_SERVICE) -> Snapshot:
    return b.snapshot(b.node("n1", state), jobs=[job])


@pytest.mark.parametrize(
    ("job", "state", "paused", "health", "is_ill"),
    [
        (b.job(nodes=("n1", "n2")), NodeState.IN_SERVICE, "", "runs well", False),
        (b.job(nodes=("n1", "n2")), NodeState.SUSPECT, "", "runs, on n1 (suspect)", True),
        (b.job(nodes=("n1", "n2")), NodeState.PROBATION, "", "runs well", False),
        (b.job(nodes=("n2",)), NodeState.SUSPECT, "", "runs well", False),
        (b.job(state="PENDING", nodes=()), NodeState.IN_SERVICE, "", "waits", False),
        (b.job(state="COMPLETED"), NodeState.IN_SERVICE, "", "ended", False),
        (b.job(managed=False), NodeState.IN_SERVICE, "", "not managed by Understudy", False),
        (b.job(), NodeState.IN_SERVICE, "an operator's words", "paused: Understudy leaves it alone", False),
    ],
)
def test_a_job_is_well_or_what_is_wrong_is_named(
    job: Job, state: NodeState, paused: str, health: str, is_ill: bool
) -> None:
    (found,) = own_jobs([record(job, paused)], fleet(job, state))
    assert (found.health, found.is_ill) == (health, is_ill)


def test_what_stands_still_comes_first_and_what_has_ended_last() -> None:
    job, other, over = b.job(), b.job(job_id=8, nodes=("n1",)), b.job(job_id=9, state="COMPLETED")
    seen = replace(fleet(job), jobs={one.key: one for one in (job, other, over)}, incidents={STILL.subject: STILL})
    found = own_jobs([record(one) for one in (over, other, job)], seen)
    assert [one.health for one in found] == ["gang hung unnamed", "runs well", "ended"]


def test_maintenance_names_own_jobs_on_nodes_that_still_wait_for_it() -> None:
    job = b.job(nodes=("n1", "n2"))
    planned = Maintenance(1, ("r1",), ("n1", "n2", "n3"), "x", "ada", b.NOW, b.NOW + 60, 1, stages={"n2": Stage.DONE})
    seen = b.changed(fleet(job), maintenances=(planned,))
    (found,) = own_maintenance(job.slurm.user_id, seen)
    assert (found.nodes, found.jobs) == (2, ((job.key.job_id, 1),))
    (of_other,) = own_maintenance(job.slurm.user_id + 1, seen)
    assert of_other.jobs == ()
