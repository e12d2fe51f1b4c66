"""A gang's program fails on a spare where it never ran before: the gang gets another one from the pool, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.recover.rehearsal import Rehearsal
from tests.recover.test_course import switch
from tests.recover.test_launcher import ObedientLauncher, incidents_of_the_gang, report
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import Attempt, Reached
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.store import tables
from understudy_wire.facts import LaunchCause, LaunchEnded, LaunchStarted, RankStarted
from understudy_wire.launcher import LauncherPhase, LauncherState

pytestmark = [pytest.mark.integration, pytest.mark.patient]

REASON = "rank 1 ended with exit code 1"


class Launcher:
    """Launcher of the rehearsal's gang, in each of its allocations: all of its nodes are seats, and none is a spare."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.launch, self.phase, self.restart_count = 0, LauncherPhase.RUNNING, 0

    def turn(self) -> None:
        state, restart_count = self.rehearsal.gang_state()
        if state != "RUNNING":
            return
        if restart_count != self.restart_count:
            self.launch, self.phase, self.restart_count = 0, LauncherPhase.RUNNING, restart_count
        seats = tuple(self.rehearsal.gang_nodes())
        now = LauncherState(self.rehearsal.gang, restart_count, self.launch, self.phase, seats, nodes_min=len(seats))
        self.rehearsal.control_plane.launchers.note(Gang(now, seats[0], self.rehearsal.fake.now))

    def start(self) -> None:
        seats, at = tuple(self.rehearsal.gang_nodes()), self.rehearsal.fake.now
        report(self.rehearsal, LaunchStarted(1, self.restart_count, self.launch, seats, (), at))

    def step(self, number: int) -> None:
        """Ranks have finished it."""
        attempt = Attempt(self.restart_count, self.launch)
        progress = {(self.row, attempt): Reached(number, self.rehearsal.fake.now)}
        self.rehearsal.control_plane.stores.fleet.note_progress(progress)

    def fail_on(self, node: str, cause: LaunchCause = LaunchCause.BLACK_HOLE, *, waits: bool = True) -> None:
        at = self.rehearsal.fake.now
        attempt = (self.restart_count, self.launch)
        report(self.rehearsal, LaunchEnded(1, *attempt, "L125", REASON, at, cause=cause, failed_node=node, rank=1))
        self.phase = LauncherPhase.WAITING if waits else self.phase

    @property
    def row(self) -> int:
        with self.rehearsal.engine.connect() as connection:
            row: int = connection.execute(select(tables.job.c.id).where(tables.job.c.job_id == 1)).scalar_one()
        return row

    def newcomers(self) -> tuple[str, ...]:
        launches = self.rehearsal.control_plane.stores.launches
        return launches.earlier_allocations(self.row, self.restart_count, self.rehearsal.gang_nodes()).spent.newcomers


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


@pytest.fixture
def launcher(rehearsal: Rehearsal) -> Iterator[Launcher]:
    """n3 has failed after step 40, and the gang has been moved to n6 of the pool."""
    launcher = Launcher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(2)
    launcher.start()
    launcher.step(40)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(2)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    launcher.start()
    yield launcher


def moved_from(rehearsal: Rehearsal) -> list[tuple[str, ...]]:
    return [(*one.plan.nodes, *getattr(one.plan, "leaving", ())) for one in rehearsal.recoveries()]


def test_it_moves_to_another_spare_and_the_node_stays_in_service(rehearsal: Rehearsal, launcher: Launcher) -> None:
    assert launcher.newcomers() == ("n6",)
    launcher.fail_on("n6")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 2))
    rehearsal.run(5)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n5"]
    assert moved_from(rehearsal) == [("n3",), ("n6",)]
    assert rehearsal.state_of("n6") is NodeState.IN_SERVICE
    assert "drain_node n6" not in rehearsal.line.effects
    (job,) = [one for one in rehearsal.fake.jobs() if one.job_id == rehearsal.gang]
    assert job.excluded_nodes == ("n6",)


def test_a_person_learns_of_it_until_the_gang_finishes_steps(rehearsal: Rehearsal, launcher: Launcher) -> None:
    launcher.fail_on("n6")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 2))
    rehearsal.run(5)
    assert incidents_of_the_gang(rehearsal) == [("launches.newcomer", False)]
    with rehearsal.engine.connect() as connection:
        table = tables.incident
        (row,) = connection.execute(select(table).where(table.c.rule == "launches.newcomer")).all()
    assert "failed on n6" in row.summary
    assert "`understudy job evidence 1` shows the line of the program" in row.summary


def test_where_the_program_fails_on_the_next_newcomer_too_no_further_node_is_tried(
    rehearsal: Rehearsal, launcher: Launcher
) -> None:
    launcher.fail_on("n6")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 2))
    rehearsal.run(5)
    assert launcher.newcomers() == (), "its launcher asks for none"
    launcher.start()
    launcher.fail_on("n5")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 2)
    assert [rehearsal.state_of(name) for name in ("n5", "n6")] == [NodeState.IN_SERVICE] * 2


def test_once_the_gang_has_finished_steps_another_newcomer_can_be_left(
    rehearsal: Rehearsal, launcher: Launcher
) -> None:
    launcher.fail_on("n6")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 2))
    rehearsal.run(5)
    launcher.start()
    launcher.step(41)
    rehearsal.fail("n4")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 3))
    rehearsal.run(2)
    launcher.start()
    (new,) = launcher.newcomers()
    launcher.fail_on(new)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 4))
    assert new not in rehearsal.gang_nodes()


@pytest.mark.parametrize("node", ["n1", "n7"])
def test_a_launcher_cannot_have_its_gang_moved_off_other_nodes(
    rehearsal: Rehearsal, launcher: Launcher, node: str
) -> None:
    """A launcher is a user's process: on n1 its program ran, and n7 is no node of its job."""
    launcher.fail_on(node)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_a_launcher_that_goes_on_is_not_stopped(rehearsal: Rehearsal, launcher: Launcher) -> None:
    launcher.fail_on("n6", waits=False)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_a_failure_for_which_the_launcher_blames_no_node_moves_nothing(
    rehearsal: Rehearsal, launcher: Launcher
) -> None:
    launcher.fail_on("n6", LaunchCause.PROGRAM)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_a_gang_that_never_finished_a_step_has_no_newcomers(rehearsal: Rehearsal) -> None:
    launcher = Launcher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(2)
    assert launcher.newcomers() == ()
    launcher.fail_on("n6")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_in_a_pause_it_stays(rehearsal: Rehearsal, launcher: Launcher) -> None:
    switch(rehearsal, Verb.PAUSE)
    launcher.fail_on("n6")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_without_a_spare_nothing_is_done_and_the_decision_is_recorded(rehearsal: Rehearsal, launcher: Launcher) -> None:
    for name in ("n5", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    rehearsal.run(5)
    launcher.fail_on("n6")
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    with rehearsal.engine.connect() as connection:
        table = tables.decision
        rows = connection.execute(select(table).where(table.c.table_row == 370)).all()
    assert {row.because for row in rows} == {"no_spare"}
    assert "held_back" not in {one.kind for one in rehearsal.control_plane.loop.pulse.needs}, (
        "a minute later it is over"
    )


def test_in_mode_approve_an_operator_is_asked(rehearsal: Rehearsal, launcher: Launcher) -> None:
    rehearsal.restart_control_plane(mode="approve")
    rehearsal.run(5)
    launcher.fail_on("n6")
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert [one.status for one in rehearsal.recoveries()][-1] is RecoveryStatus.AWAITS_APPROVAL


def test_a_spare_of_its_own_allocation_on_which_the_program_fails_is_left_too(rehearsal: Rehearsal) -> None:
    """n2 has failed, n4 was the allocation's only spare: two nodes of the pool are needed."""
    launcher, own = Launcher(rehearsal), ObedientLauncher(rehearsal)
    rehearsal.each_tick = own.turn
    rehearsal.run(2)
    report(rehearsal, LaunchStarted(1, 0, 0, own.seats, own.spares, rehearsal.fake.now))
    launcher.step(40)
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: own.launch == 1)
    report(rehearsal, LaunchStarted(1, 0, 1, own.seats, (), rehearsal.fake.now))
    launcher.launch = 1
    launcher.fail_on("n4")
    own.phase = LauncherPhase.WAITING
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert rehearsal.gang_nodes() == ["n1", "n3", "n6", "n7"]
    assert (rehearsal.state_of("n2"), rehearsal.state_of("n4")) == (NodeState.QUARANTINED, NodeState.IN_SERVICE)


def test_without_a_launcher_a_person_learns_that_the_job_failed_in_its_move(rehearsal: Rehearsal) -> None:
    """Slurm shows it as FAILED once its batch script has ended, and such a job is never started again."""
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5))
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(2)
    rehearsal.fake.end(rehearsal.gang, "FAILED")
    rehearsal.run(60)
    (ticket,) = [one for one in rehearsal.tickets if "job 1 " in str(one)]
    assert "`scontrol requeue 1` starts it again" in str(ticket)
