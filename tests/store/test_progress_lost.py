"""What a restart of a gang inside its allocation cost it in steps."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from tests import builders as b
from understudy_controlplane.api.recoveries import progress_lost
from understudy_controlplane.fleet.job import Attempt, KnownJob, Reached, RestoreAnswer, RestoreDecision
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, StepName
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.queries import Queries
from understudy_wire.facts import FirstStep

JOB = b.job()


@pytest.fixture
def job(engine: Engine) -> KnownJob:
    """Its first launch has reached step 29, its second one step 80 so far."""
    fleet = FleetStore(engine)
    (known,) = fleet.see_jobs([JOB], b.NOW)
    fleet.note_progress({(known.row, Attempt(0)): Reached(29, b.NOW), (known.row, Attempt(0, 1)): Reached(80, b.NOW)})
    return known


def lost(engine: Engine) -> dict[str, Any]:
    plan = AllocationSwapPlan(
        steps=(StepName.REQUEUE_JOB,),
        drain_reason="x",
        nodes=("n1",),
        submit_at=5,
        job=JOB.key,
        restart_count=0,
        launch=0,
    )
    return progress_lost(Queries(engine), plan)


def first_step_is(engine: Engine, job: KnownJob, step: int) -> None:
    """Writes the first step of the next launch, on each rank."""
    facts = [
        FirstStep(JOB.key.job_id, 0, rank, 4, step, b.NOW, launch=1, user_id=JOB.slurm.user_id) for rank in range(4)
    ]
    assert FactStore(engine).record("n1", facts, b.NOW, lambda _: job) == []


def test_what_the_next_launch_has_reached_since_is_not_lost(engine: Engine, job: KnownJob) -> None:
    point = RestoreDecision(RestoreAnswer.RESTORE, 20, "/c/20")
    FleetStore(engine).record_restore_point(job.row, Attempt(0, 1), point, b.NOW)
    assert lost(engine) == {"last_step": 29, "restore_step": 20, "steps_lost": 10}


def test_steps_are_lost_as_the_program_numbers_them(engine: Engine, job: KnownJob) -> None:
    """It trains a second time, after 20 steps: step 9 of the second training was the last."""
    FleetStore(engine).note_progress({(job.row, Attempt(0)): Reached(29, b.NOW, 20)})
    first_step_is(engine, job, 7)
    assert lost(engine) == {"last_step": 9, "restore_step": 7, "steps_lost": 3}


def test_ranks_that_kept_their_state_go_on_where_they_were(engine: Engine, job: KnownJob) -> None:
    """They ask for no checkpoint: the first step that they finish shows where they began."""
    assert lost(engine) == {"last_step": 29, "restore_step": None, "steps_lost": None}, "no step is finished yet"
    first_step_is(engine, job, 30)
    assert lost(engine) == {"last_step": 29, "restore_step": 30, "steps_lost": 0}


def test_a_gang_that_goes_on_from_a_save_in_memory_loses_less_than_its_restore_point_says(
    engine: Engine, job: KnownJob
) -> None:
    """Its ranks ask for the restore point first: they go back to no older save than that."""
    point = RestoreDecision(RestoreAnswer.RESTORE, 20, "/c/20")
    FleetStore(engine).record_restore_point(job.row, Attempt(0, 1), point, b.NOW)
    first_step_is(engine, job, 28)
    assert lost(engine) == {"last_step": 29, "restore_step": 28, "steps_lost": 2}
