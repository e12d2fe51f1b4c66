"""The last attempt of a job that pends again."""

from __future__ import annotations

from sqlalchemy import Engine

from tests import builders as b
from understudy_controlplane.fleet.job import Attempt, LastAttempt, Reached
from understudy_controlplane.store.fleet import FleetStore


def test_the_last_attempt_ended_when_its_last_launch_did(engine: Engine) -> None:
    fleet, job = FleetStore(engine), b.job()
    (known,) = fleet.see_jobs([job], b.NOW)
    fleet.see_launches({known.row: Attempt(0, 1)}, b.NOW + 10)
    fleet.note_progress({(known.row, Attempt(0)): Reached(29, b.NOW)})
    fleet.end_attempts({known.row: Attempt(0, 1)}, b.NOW + 20)
    assert fleet.last_attempts({known.row: 0})[known.row].ended_at is None
    fleet.end_attempts({}, b.NOW + 30)
    assert fleet.last_attempts({known.row: 0}) == {
        known.row: LastAttempt(0, job.slurm.nodes, last_step=29, ended_at=b.NOW + 30)
    }
