"""How often the loop reads Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import builders as b
from tests.recover.rehearsal import EFFECTS, Rehearsal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb

pytestmark = [pytest.mark.integration, pytest.mark.patient]


def test_a_process_that_waits_for_its_job_to_be_shown_gets_a_reading_soon(tmp_path: Path) -> None:
    """Slurm's TaskProlog asks for the restore point and waits for a second, as long as two readings are apart."""
    rehearsal = Rehearsal(tmp_path)
    loop = rehearsal.control_plane.loop

    def read_after(seconds: float) -> bool:
        """True if a tick reads Slurm when the newest reading is so old."""
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
    rehearsal.control_plane.stores.requests.ask(Verb.BURN_IN, "n5", "new", "alice", rehearsal.clock.now())
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
    assert len(readings) <= 50 + 2, "one a second, which the repair shares"
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.PROBATION, 100 + 400 / 20)


def test_a_gang_that_moves_shares_the_readings_of_the_loop(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    readings, effects, ticks = list[str](), list[str](), list[int]()
    rehearsal.line.before = lambda call: (readings if call == "jobs" else effects).append(call)
    rehearsal.each_tick = lambda: ticks.append(len(readings))
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    carried_out = [one for one in effects if one in EFFECTS]
    assert len(carried_out) > 7
    assert len(readings) <= len(ticks) + 1, "each effect reads its own job"


def test_where_a_reading_takes_long_it_is_followed_by_a_rest_and_no_effect_waits_for_that(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    readings: list[float] = []

    def takes_two_seconds(call: str) -> None:
        if call == "jobs":
            rehearsal.fake.advance(2.0)
            readings.append(rehearsal.fake.now)

    rehearsal.line.before = takes_two_seconds
    rehearsal.run_until(lambda: len(readings) == 2, 10)
    readings.clear()
    rehearsal.run(100)
    assert 10 <= len(readings) <= 13
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n3"], 15)
    rehearsal.run_until(rehearsal.ended, 150)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_one_reading_that_slurmctld_kept_waiting_puts_off_none(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    held_up = iter([10.0])
    rehearsal.line.before = lambda call: rehearsal.fake.advance(next(held_up, 0.0)) if call == "jobs" else None
    reading = rehearsal.control_plane.loop.observer.reading
    rehearsal.run_until(lambda: reading.seconds >= 10, 5)
    begun = rehearsal.clock.now()
    rehearsal.run_until(lambda: reading.seconds < 10, 15)
    assert rehearsal.clock.now() - begun < 3


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
