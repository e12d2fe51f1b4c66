"""What is written of what Slurm shows, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event

from tests import builders as b
from tests.new_database import new_database
from tests.recover.rehearsal import Rehearsal
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.slurm_recorder import WRITTEN_AT_ONCE
from understudy_controlplane.store.queries import Queries

pytestmark = pytest.mark.integration


class Queue(VirtualSlurm):
    """A long queue of pending jobs."""

    waiting: list[SlurmJob]

    def jobs(self) -> list[SlurmJob]:
        return self.waiting


def plane_with(database: str, jobs: int) -> ControlPlane:
    slurm = Queue(["n1"])
    slurm.waiting = [b.slurm_job(job_id, nodes=(), state="PENDING") for job_id in range(1, jobs + 1)]
    config = Config.model_validate({"cluster": b.CLUSTER, "server": {"database": database}})
    return compose(config, Outside(slurm, lambda _node: True))


def statements_of_a_reading(plane: ControlPlane) -> list[str]:
    made: list[str] = []

    def note(_connection: object, _cursor: object, text: str, *_more: object) -> None:
        made.append(text)

    event.listen(plane.engine, "before_cursor_execute", note)
    plane.loop.look(0.0)
    event.remove(plane.engine, "before_cursor_execute", note)
    return made


def test_a_queue_four_times_as_long_needs_no_more_statements(tmp_path: Path) -> None:
    """Neither to be written down by a new control plane, nor to be found again by the next."""
    made: list[list[int]] = []
    for jobs in (50, 200):
        url = new_database(tmp_path / f"{jobs}.db")
        first, second = plane_with(url, jobs), plane_with(url, jobs)
        made.append([len(statements_of_a_reading(first)), len(statements_of_a_reading(second))])
        assert len(second.stores.fleet.known_jobs(b.CLUSTER, range(1, jobs + 1))) == jobs
    assert made[0] == made[1]


def test_a_new_control_plane_that_writes_a_long_queue_shows_that_it_makes_progress(tmp_path: Path) -> None:
    """Neither systemd nor a standby takes its first reading for a loop that hangs."""
    turns: list[int] = []
    for jobs in (WRITTEN_AT_ONCE, WRITTEN_AT_ONCE + 1):
        plane = plane_with(new_database(tmp_path / f"{jobs}.db"), jobs)
        plane.loop.look(0.0)
        turns.append(plane.loop.pulse.turns)
    assert turns == [1, 2]


def test_a_control_plane_that_starts_ends_no_launch_that_goes_on(tmp_path: Path) -> None:
    """It is a launcher's second one, and no rank has reported yet to this control plane."""
    rehearsal = Rehearsal(tmp_path)
    stores = rehearsal.control_plane.stores
    row = stores.fleet.known_jobs(b.CLUSTER, [rehearsal.gang])[rehearsal.gang].row
    stores.fleet.see_launches({row: Attempt(0, 1)}, rehearsal.fake.now)
    stores.fleet.end_attempts({row: Attempt(0, 1)}, rehearsal.fake.now)
    rehearsal.restart_control_plane()
    rehearsal.run(3)
    (job,) = [one for one in Queries(rehearsal.control_plane.engine).jobs(10) if one["job_id"] == rehearsal.gang]
    assert [(one["launch"], one["ended_at"] is None) for one in job["attempts"]] == [(0, False), (1, True)]


def test_a_control_plane_that_starts_writes_the_jobs_that_changed_and_no_others(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)

    def wrote() -> bool:
        """True if a control plane that starts now writes a job or an attempt."""
        rehearsal.restart_control_plane()
        begins = ("INSERT INTO job ", "UPDATE job ", "INSERT INTO attempt ", "UPDATE attempt ")
        return any(text.startswith(begins) for text in statements_of_a_reading(rehearsal.control_plane))

    assert not wrote()
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.fake.advance(5)
    assert wrote()
    assert not wrote()
