"""How often the loop reads Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb

pytestmark = [pytest.mark.integration, pytest.mark.patient]


def test_a_process_that_waits_for_its_job_to_be_shown_gets_a_reading_soon(tmp_path: Path) -> None:
    """Slurm's TaskProlog asks for the restore point and waits for a second, as long as two readings are apart."""
    rehearsal = Rehearsal(tmp_path)
    loop = rehearsal.control_plane.loop

    def read_after(seconds: float) -> bool:
        """Whether a tick reads Slurm when the newest reading is so old."""
        loop.look(0.0)
        before = loop.observer.reading.at
        rehearsal.fake.advance(seconds)
        loop.tick()
        return loop.observer.reading.at != before

    assert not read_after(0.5)
    loop.read_soon()
    assert read_after(0.5)
    assert not read_after(0.5), "once"
    loop.read_soon()
    assert not read_after(0.1), "not for each of those who ask"


def test_a_step_that_waits_for_hours_reads_slurm_no_more_often_than_the_loop_does_anyway(tmp_path: Path) -> None:
    validation = {"enabled": True, "burn_in_hours": 4}
    rehearsal = Rehearsal(tmp_path, validation=validation)
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.fake.job_seconds = 400.0
    rehearsal.control_plane.stores.repairs.ask(Verb.BURN_IN, "n5", "new", "alice", rehearsal.clock.now())
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.VALIDATING)
    rehearsal.run(300)

    readings: list[str] = []
    rehearsal.line.before = lambda call: readings.append(call) if call == "jobs" else None
    recovering = False
    for _ in range(100):
        rehearsal.fake.advance(0.1 if recovering else 0.5)
        rehearsal.report()
        recovering = rehearsal.control_plane.loop.tick(recovering)
    assert rehearsal.state_of("n5") is NodeState.VALIDATING
    each_second, each_rest = 50, 50 / 15
    assert len(readings) <= each_second + each_rest + 2
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.PROBATION, 100 + 400 / 20)


def test_a_job_that_stays_as_it_is_is_written_once_a_day(tmp_path: Path) -> None:
    """How long Slurm has not shown a job decides when it is deleted."""
    rehearsal = Rehearsal(tmp_path)
    fleet = rehearsal.control_plane.stores.fleet

    def seen_seconds_ago() -> float:
        return rehearsal.clock.now() - fleet.known_jobs(b.CLUSTER, [rehearsal.gang])[rehearsal.gang].seen_at

    rehearsal.run(60)
    assert seen_seconds_ago() > 50
    rehearsal.fake.advance(25 * 3600.0)
    rehearsal.run(5)
    assert seen_seconds_ago() < 60
