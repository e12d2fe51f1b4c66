"""A job that works is not ended for what ordinary programs do. A whole control plane judges what ranks report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count, cycle, islice
from math import inf
from pathlib import Path

import msgspec
import pytest

from tests import builders as b
from tests.recover.rehearsal import NODES, Rehearsal, first, refuse
from tests.recover.test_course import stop_before, switch
from tests.recover.test_launcher import ObedientLauncher, all_ended, moves, report
from tests.recover.test_maintenance import write_checkpoint
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_wire.facts import FirstStep, RankStarted
from understudy_wire.hardware import GpuStatus
from understudy_wire.launcher import LauncherPhase, LauncherState
from understudy_wire.ranks import Collective, GroupPlace, ProcessNow, ProcessState, RankWindow, Recorder

pytestmark = [pytest.mark.integration, pytest.mark.patient]

STEP_SECONDS = 2.0
HOURS = 3600.0


class Training:
    """The gang's ranks, one on each node. They finish a step every two seconds, numbered as the program does."""

    def __init__(self, rehearsal: Rehearsal, numbers: Iterator[int], *, collectives: bool = False) -> None:
        self._rehearsal = rehearsal
        self._numbers = numbers
        self._collectives = collectives
        self._steps = 0
        self._begun_at = rehearsal.fake.now
        self.world_size = 4
        self.launch = 0  # below 0: no rank has connected
        self.stands = False
        self.ended = False
        self.behind: int | None = None
        """The rank that has not entered the collective in which the others wait."""
        self.late: int | None = None
        """The same of ranks that mark no collectives: their flight recorder shows it when they are asked."""
        self.asked: set[float] = set()
        self.slow: dict[int, float] = {}
        """Rank → how much longer its steps take than those of others."""

    def turn(self) -> None:
        """Reports the steps since the last turn. A window has consecutive numbers: what comes before a fall is lost."""
        due = int((self._rehearsal.fake.now - self._begun_at) / STEP_SECONDS) - self._steps
        self._steps += due
        run: list[int] = []
        for _ in range(0 if self.stands or self.ended else due):
            number = next(self._numbers, None)
            if number is None:
                break
            run = [*run, number] if run and number == run[-1] + 1 else [number]
        state, restarts = self._rehearsal.gang_state()
        nodes = self._rehearsal.gang_nodes() if state == "RUNNING" and self.launch >= 0 else []
        for rank, name in enumerate(nodes[: self.world_size]):
            if name not in self._rehearsal.silent:
                dropped = self._rehearsal.report_steps(name, self._window(rank, restarts, run))
                assert not dropped or restarts, dropped

    def go_on_with(self, numbers: Iterator[int]) -> None:
        """After the last one it stands still."""
        self._numbers = numbers

    def _window(self, rank: int, restarts: int, run: list[int]) -> RankWindow:
        own = [1.0 * self.slow.get(rank, 1.0)] * len(run)
        behind = rank == self.behind
        number = 119 if rank == self.late else 120
        recorder = Recorder([GroupPlace("0:default_pg", number, number % 119 and number)], still=True)
        entered = Collective("all_reduce", self._steps - behind, self._rehearsal.fake.now, None, inside=not behind)
        window = RankWindow(
            self._rehearsal.gang,
            restarts,
            rank,
            self.world_size,
            0,
            next(job.user_id for job in self._rehearsal.fake.jobs() if job.job_id == self._rehearsal.gang),
            "",
            run[0] if run else 0,
            own,
            [STEP_SECONDS] * len(run),
            launch=self.launch,
            collective=entered if self._collectives else None,
            ended=self.ended,
            process=ProcessNow(ProcessState.SLEEPS, 60.0) if self.stands else None,
        )
        if self.late is None or not self._rehearsal.control_plane.telemetry.hang_questions.answer_to([window]):
            return window
        self.asked.add(self._rehearsal.fake.now)
        return msgspec.structs.replace(window, recorder=recorder)


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def train(rehearsal: Rehearsal, numbers: Iterator[int], *, collectives: bool = False) -> Training:
    training = Training(rehearsal, numbers, collectives=collectives)
    rehearsal.each_tick = training.turn
    return training


def all_of(*turns: Callable[[], object]) -> Callable[[], None]:
    def turn() -> None:
        for one in turns:
            one()

    return turn


PROGRAMS: dict[str, Callable[[], Iterator[int]]] = {
    "steps numbered within an epoch": lambda: cycle(range(1_500)),
    "a second stage that counts from 0": lambda: chain(range(1_500), count()),
    "a retry that resumes from an older step": lambda: chain(range(1_500), range(300, 900), count(200)),
    "every step has the same number": lambda: cycle([0]),
}


@pytest.mark.parametrize("collectives", first(1, True, False))
@pytest.mark.parametrize("program", first(2, *reversed(PROGRAMS)))
def test_numbers_that_fall_are_no_standstill(rehearsal: Rehearsal, program: str, collectives: bool) -> None:
    train(rehearsal, PROGRAMS[program](), collectives=collectives)
    rehearsal.run(2 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    assert not rehearsal.line.effects


@pytest.mark.parametrize("collectives", first(1, False, True))
def test_a_gang_that_stands_still_in_its_second_epoch_is_restarted(rehearsal: Rehearsal, collectives: bool) -> None:
    training = train(rehearsal, cycle(range(1_000)), collectives=collectives)
    rehearsal.run(1 * HOURS)
    training.stands = True
    rehearsal.run_until(rehearsal.recoveries, 2 * HOURS)
    training.stands = False
    rehearsal.run_until(rehearsal.ended, 600)
    assert rehearsal.gang_state() == ("RUNNING", 1)


@pytest.mark.long
def test_a_second_training_that_comes_further_each_time_is_restarted_each_time_that_it_hangs(
    rehearsal: Rehearsal,
) -> None:
    """Its first training had more steps: no attempt of the second one comes to a number that is as high."""
    training = train(rehearsal, chain(range(1_500), count()), collectives=True)
    rehearsal.run(1 * HOURS)  # 1,800 steps
    for restarts in range(5):
        training.stands = True
        rehearsal.run_until(lambda known=restarts: len(rehearsal.recoveries()) > known, 1 * HOURS)  # type: ignore[misc]
        training.stands = False
        training.go_on_with(count(200 + 200 * restarts))
        rehearsal.run_until(rehearsal.ended, 600)
        rehearsal.run(600)
    assert rehearsal.gang_state() == ("RUNNING", 5), rehearsal.describe()


def train_each_time_from_the_first_step(rehearsal: Rehearsal, evaluation_seconds: float) -> None:
    """Trains in epochs of 300 steps, without a checkpoint. In the third one no step ends for a time."""
    training = train(rehearsal, iter(()))
    known, stands_at, goes_on_at = -1, 0.0, 0.0

    def turn() -> None:
        nonlocal known, stands_at, goes_on_at
        (state, restarts), now = rehearsal.gang_state(), rehearsal.fake.now
        if state == "RUNNING" and restarts != known:
            known, goes_on_at = restarts, now + 700 * STEP_SECONDS + evaluation_seconds
            training.go_on_with(islice(cycle(range(300)), 700))
        if now > goes_on_at:
            training.go_on_with(islice(cycle(range(300)), 100, None))
            goes_on_at = inf
        training.turn()

    rehearsal.each_tick = turn


@pytest.mark.long
def test_a_program_that_begins_again_and_hangs_at_the_same_step_is_left_to_its_user(rehearsal: Rehearsal) -> None:
    """Its steps are numbered within an epoch, so by the count it comes further each time."""
    train_each_time_from_the_first_step(rehearsal, evaluation_seconds=inf)
    rehearsal.run(10 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 3), rehearsal.describe()
    assert any("restart_budget" in key for key in rehearsal.decisions())


def test_an_evaluation_that_is_taken_for_a_hang_gets_through_once_it_has_the_time(rehearsal: Rehearsal) -> None:
    train_each_time_from_the_first_step(rehearsal, evaluation_seconds=5_000)
    rehearsal.run(6 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 2), rehearsal.describe()


def test_a_script_that_does_something_else_after_its_training_is_left_alone(rehearsal: Rehearsal) -> None:
    """An evaluation or an upload is such: its ranks have ended, and what it does now is not known."""
    training = train(rehearsal, count())
    rehearsal.run(1 * HOURS)
    training.ended = True
    rehearsal.run(3 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()


@pytest.mark.long
def test_a_second_training_of_fewer_ranks_is_watched_like_the_first(rehearsal: Rehearsal) -> None:
    training = train(rehearsal, count())
    rehearsal.run(1 * HOURS)
    training.ended = True
    rehearsal.run(60)
    training = train(rehearsal, count())
    training.world_size = 3
    rehearsal.run(3 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    training.stands = True
    rehearsal.run_until(rehearsal.recoveries, 2 * HOURS)


def test_a_hang_is_ordered_once(rehearsal: Rehearsal) -> None:
    """The next launch has made its first step, and its steps are not reported yet: those of the launch that hung are
    ten minutes old.
    """
    launcher, training = ObedientLauncher(rehearsal), Training(rehearsal, count(), collectives=True)
    training.world_size = 3
    rehearsal.each_tick = all_of(launcher.turn, training.turn)
    rehearsal.run(300)
    training.stands, training.behind = True, 1
    rehearsal.run_until(lambda: launcher.launch == 1, 1 * HOURS)
    training.launch, training.behind = -1, None
    at = rehearsal.fake.now
    report(rehearsal, *(RankStarted(rehearsal.gang, 0, rank, 3, at, 6, launch=1) for rank in range(3)))
    report(rehearsal, *(FirstStep(rehearsal.gang, 0, rank, 3, 41, at + 0.5, launch=1) for rank in range(3)))
    rehearsal.run_until(lambda: all_ended(rehearsal), 120)
    rehearsal.run(60)
    training.launch, training.stands = 1, False
    rehearsal.run(1 * HOURS)
    assert (launcher.launch, len(moves(rehearsal))) == (1, 1), "the launch that works was ended"
    training.stands = True
    rehearsal.run_until(lambda: launcher.launch == 2, 1 * HOURS)


@pytest.mark.long
def test_the_gang_of_a_second_launcher_is_judged_by_its_own_steps(rehearsal: Rehearsal) -> None:
    """The first one has come to launch 2; the second one begins with launch 0 again."""
    launcher, training = ObedientLauncher(rehearsal), Training(rehearsal, count())
    rehearsal.each_tick = all_of(launcher.turn, training.turn)
    launcher.launch = training.launch = 2
    training.world_size = 3
    rehearsal.run(600)
    training.ended = True
    launcher.finish()
    rehearsal.run(60)
    launcher.launch, launcher.phase, launcher.ended_well = 0, LauncherPhase.RUNNING, False
    training.launch, training.ended = 0, False
    rehearsal.run(2 * HOURS)
    assert (launcher.launch, moves(rehearsal)) == (0, [])
    training.stands = True
    rehearsal.run_until(lambda: launcher.launch == 1, 3 * HOURS)


@pytest.mark.long
def test_a_slow_gang_whose_checkpoints_are_not_known_stays_and_a_person_is_notified_once(rehearsal: Rehearsal) -> None:
    training = train(rehearsal, count())
    rehearsal.run(600)
    training.slow = {2: 1.5}
    rehearsal.gpus["n3"] = [b.gpu(index, clock_event_reasons=0x40) for index in range(8)]
    rehearsal.run(4 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    assert not rehearsal.line.effects
    (ticket,) = rehearsal.tickets
    assert "it is not moved, because its checkpoints are not announced" in str(ticket)
    assert "is slow on n3" in str(ticket)
    notes = rehearsal.control_plane.telemetry.job_notes.answer_to([training._window(0, 0, [])])
    (text,) = [note.text for note in notes if "not announced" in note.text]
    assert "on n3, rank 2 takes 1.50 times as long as its peers; cause clocks" in text
    assert "rank hours an hour" in text and f"understudy job move {rehearsal.gang} REASON --off n3" in text


def test_a_gang_on_a_slow_node_leaves_it_as_soon_as_a_spare_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is quarantined before; that steps end there in each round refutes nothing."""
    monkeypatch.setattr("tests.recover.test_working_jobs.STEP_SECONDS", 0.1)
    rehearsal = Rehearsal(tmp_path, spares={"count": 3, "no_spare": "page"})
    training, steps = Training(rehearsal, count()), count(1)

    def turn() -> None:
        training.turn()
        if rehearsal.gang_state() == ("RUNNING", 0):
            write_checkpoint(rehearsal, next(steps))

    rehearsal.each_tick = turn
    rehearsal.run(600)
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    training.slow = {2: 1.5}
    rehearsal.gpus["n3"] = [b.gpu(index, clock_event_reasons=0x40) for index in range(8)]
    rehearsal.run_until(lambda: rehearsal.state_of("n3") is NodeState.QUARANTINED, 4 * HOURS)
    rehearsal.run(600)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert "no fitting spare" in str(rehearsal.tickets)
    rehearsal.fake.resume_node("n7")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 300)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n7"]


@pytest.mark.parametrize("held_up_by", ["reservations that slurmctld refuses", "a pause"])
def test_a_gang_that_trains_on_where_a_node_answers_again_is_not_moved(rehearsal: Rehearsal, held_up_by: str) -> None:
    """The network of n2 was away: its gang stood still, and the node counted as dead."""
    training = train(rehearsal, count())
    rehearsal.run(120)
    if held_up_by == "reservations that slurmctld refuses":
        rehearsal.line.before = refuse("create_reservation")
    else:
        stop_before(rehearsal, "create_reservation", lambda: switch(rehearsal, Verb.PAUSE))
    rehearsal.silent.add("n2")
    training.stands = True
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.QUARANTINED, 120)
    rehearsal.run(10)
    rehearsal.silent.discard("n2")
    training.stands = False
    rehearsal.run(20)
    rehearsal.line.before = lambda _name: None
    if held_up_by == "a pause":
        switch(rehearsal, Verb.RESUME)
    rehearsal.run(600)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED, "it is validated once its job has ended"
    assert not any(effect.startswith(("down_node", "requeue_job")) for effect in rehearsal.line.effects)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 300)
    assert "n2" not in rehearsal.gang_nodes(), "where the gang has to leave anyway, it leaves that node too"


def test_a_gang_that_trains_on_without_a_gpu_stays_also_while_it_pauses_and_leaves_when_it_hangs(
    rehearsal: Rehearsal,
) -> None:
    """An administrator has taken a GPU of n3 for a virtual machine. It saves, evaluates, and the control plane is
    started again while it saves.
    """
    training, gone_at = train(rehearsal, count()), rehearsal.fake.now + 300

    def turn() -> None:
        training.turn()
        if (seconds := rehearsal.fake.now - gone_at) > 0:
            missing = b.gpu(7, status=GpuStatus.MISSING, missing_seconds=seconds)
            rehearsal.gpus["n3"] = [*(b.gpu(index) for index in range(7)), missing]

    rehearsal.each_tick = turn
    rehearsal.run(340)
    for pause, restarts in ((40, False), (400, False), (40, True)):
        training.stands = True
        rehearsal.run(10)
        if restarts:
            rehearsal.restart_control_plane()
            rehearsal.control_plane.loop.tick()  # it takes step times of jobs that it has read from Slurm
        rehearsal.run(pause)
        training.stands = False
        rehearsal.run(120)
        assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
        assert rehearsal.state_of("n3") is NodeState.QUARANTINED, "it is repaired once its job has ended"
        assert rehearsal.line.effects == {"drain_node n3": 1}
    training.stands = True
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 3 * HOURS)
    assert "n3" not in rehearsal.gang_nodes()


def test_nodes_to_which_the_control_plane_alone_has_no_route_are_not_dead(tmp_path: Path) -> None:
    """Slurm shows them allocated and responding, and the job has neither hook nor launcher."""
    rehearsal = Rehearsal(tmp_path, silence={"dead_unconfirmed_seconds": None})
    rehearsal.silent |= {"n2", "n3"}
    rehearsal.run(2 * HOURS)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    assert not rehearsal.line.effects
    assert {rehearsal.state_of(name) for name in ("n2", "n3")} == {NodeState.UNKNOWN}
    rehearsal.fake.kill_node("n2")
    # Slurm's own time-out ends the wait for n3, which does not answer the control plane and may be dead as well.
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 900)
    assert "n2" not in rehearsal.gang_nodes()


def test_a_launcher_of_another_job_declares_no_node_lost(rehearsal: Rehearsal) -> None:
    """The management network of n2 is away for 15 s, and a stranger's launcher names every node of the cluster."""
    stranger = rehearsal.fake.submit("stranger", 1, comment="understudy")
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.set_config(silence={"dead_unconfirmed_seconds": None})
    rehearsal.run(5)
    (node,) = next(job.nodes for job in rehearsal.fake.jobs() if job.job_id == stranger)
    state = LauncherState(stranger, 0, 0, LauncherPhase.RUNNING, (node,), (), NODES, nodes_min=1)
    launchers = rehearsal.control_plane.launchers
    rehearsal.each_tick = all_of(lambda: launchers.note(Gang(state, node, rehearsal.fake.now)))
    rehearsal.run(5)
    rehearsal.silent.add("n2")
    rehearsal.run(15)
    rehearsal.silent.discard("n2")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 0), rehearsal.describe()
    assert rehearsal.state_of("n2") is NodeState.IN_SERVICE


def test_a_gang_that_hangs_is_asked_and_the_node_that_it_waits_for_gives_up_its_seat(rehearsal: Rehearsal) -> None:
    """Its ranks mark no collectives and no launcher starts them: their flight recorders name the rank."""
    training = train(rehearsal, count())
    rehearsal.run(300)
    training.stands, training.late = True, 2
    began = rehearsal.fake.now
    rehearsal.run_until(rehearsal.recoveries, 1 * HOURS)
    assert training.asked and min(training.asked) - began >= 1800, "asked only once it counts as hung"
    assert rehearsal.fake.now - min(training.asked) < 30, "and restarted as soon as all have answered"
    training.stands, training.late = False, None
    rehearsal.run_until(rehearsal.ended)
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n4", "n6"])
    assert rehearsal.state_of("n3") is NodeState.SUSPECT


def test_a_gang_whose_ranks_do_not_answer_is_restarted_all_the_same(rehearsal: Rehearsal) -> None:
    training = train(rehearsal, count())
    rehearsal.run(300)
    training.stands = True
    began = rehearsal.fake.now
    rehearsal.run_until(rehearsal.recoveries, 1 * HOURS)
    assert 1800 <= rehearsal.fake.now - began < 1800 + 45
    training.stands = False
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n3", "n4"]
