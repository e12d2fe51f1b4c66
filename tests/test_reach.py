"""A control plane notices what it no longer reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import structlog

from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.clock import SystemClock
from understudy_controlplane.decide.leadership import RENEWAL_SECONDS, UNHEARD_SECONDS, UNREAD_SECONDS
from understudy_controlplane.fleet.holder import Leader, Standby
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.live.leaders import Leaders
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.reach import OPEN_MAX, AgentReach, Reach, SlurmReach, SlurmTrial
from understudy_controlplane.slurm.protocol import SlurmError, SlurmReads, SlurmUnavailable


class Line:
    def __init__(self) -> None:
        self.now = 100.0
        self.is_cut = False
        self.cluster = "c"
        self.raises: Exception | None = None
        self.reach = SlurmReach(cast(SlurmReads, self), "C", lambda: self.now)
        self.standby = Standby(0.1, able=True)

    def config(self) -> dict[str, str]:
        if self.is_cut:
            raise SlurmUnavailable("it did not end in time")
        if self.raises is not None:
            raise self.raises
        return {"ClusterName": self.cluster}

    def ask(self) -> None:
        begun = self.reach.due()
        if begun is not None:
            self.reach.ask(begun)

    def ask_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.ask()
            self.now += 0.25

    def able(self) -> dict[str, Standby]:
        """A standby that is answered again with each look."""
        self.standby = self.standby._replace(answers=self.standby.answers + 1)
        return {"b": self.standby}


def test_slurm_is_missed_where_it_answers_no_more_and_there_again_with_the_first_answer() -> None:
    line = Line()
    assert line.reach.problem() == "slurmctld has not answered yet"
    line.ask_for(5)
    assert (line.reach.problem(), line.reach.unanswered()) == ("", None)
    line.is_cut = True
    cut_at = line.now
    line.ask_for(3)
    missed = line.reach.unanswered()
    assert missed is not None
    assert cut_at <= missed.since < missed.missed_at < line.now
    assert line.reach.problem() == "it did not end in time"
    line.is_cut = False
    line.ask_for(1)
    assert (line.reach.problem(), line.reach.unanswered()) == ("", None)


def test_slurmctld_of_another_cluster_is_not_reached() -> None:
    line = Line()
    line.cluster = "other"
    line.ask_for(5)
    assert line.reach.problem() == "this Slurm's ClusterName is 'other', but the configuration says 'C'"
    assert line.reach.unanswered() is not None


def test_an_error_that_nothing_expects_is_a_question_that_failed_and_is_logged_once() -> None:
    line = Line()
    line.ask_for(2)
    line.raises = ValueError("no number")
    with structlog.testing.capture_logs() as logs:
        line.ask_for(6)
    assert line.reach.problem() == "an error of the control plane: ValueError('no number')"
    assert [one["event"] for one in logs] == ["slurm_not_asked"]
    line.raises = None
    line.ask_for(1)
    assert line.reach.unanswered() is None


def test_questions_that_do_not_end_are_bounded() -> None:
    line, asked = Line(), 0
    for _ in range(100):
        asked += line.reach.due() is not None
        line.now += 1.0
    assert asked == OPEN_MAX


def test_a_slurmctld_that_is_away_for_a_week_costs_no_memory() -> None:
    line = Line()
    line.is_cut = True
    line.ask_for(3600)
    sizes = [len(value) for value in vars(line.reach).values() if isinstance(value, set | dict | list)]
    assert sizes
    assert max(sizes) <= OPEN_MAX
    assert line.reach.unanswered() is not None


def test_a_machine_without_a_free_thread_is_a_question_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    monkeypatch.setattr(
        "threading.Thread.start", lambda _: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
    )
    for _ in range(2 * OPEN_MAX):
        begun = line.reach.due()
        assert begun is not None
        line.reach.start(begun)
        line.now += 1
    assert line.reach.problem() == "can't start new thread"


class Unreadable(VirtualSlurm):
    error: Exception | None = None

    def jobs(self) -> list[SlurmJob]:
        if self.error is not None:
            raise self.error
        return super().jobs()


@pytest.mark.parametrize("error", [SlurmError("JobState=NEW is not known"), ValueError("JobState=NEW is not known")])
def test_a_standby_cannot_work_where_its_slurmctld_answers_what_a_leader_refuses(error: Exception) -> None:
    slurm = Unreadable(["n1"])
    trial = SlurmTrial(slurm, "testbed", SystemClock())
    assert trial.problem() == "Slurm has not been read yet"
    trial.read()
    assert trial.problem() == ""
    slurm.error = error
    trial.read()
    assert "JobState=NEW is not known" in trial.problem()
    slurm.error = None
    trial.read()
    assert trial.problem() == ""
    other = SlurmTrial(slurm, "elsewhere", SystemClock())
    other.read()
    assert "ClusterName is 'testbed'" in other.problem()


def test_a_leader_that_is_answered_and_cannot_read_slurm_for_long_misses_it() -> None:
    line, leaders, reading = Line(), Leaders(Leader("i", 1)), SlurmReading(at=1000.0)
    reach = Reach(line.reach, lambda: reading, leaders)

    def look(seconds: float) -> str:
        for _ in range(int(seconds / RENEWAL_SECONDS)):
            line.ask_for(RENEWAL_SECONDS)
            leaders.note("n1", [], line.now)
            found = reach.missing(line.able())
        return found

    reading.error = "JobState=NEW is not known"
    assert look(UNREAD_SECONDS - 2) == ""
    reading.at, reading.error = 1020.0, ""
    assert look(1) == "", "one reading that succeeds ends it"
    assert look(2 * UNREAD_SECONDS) == "", "a loop that waits for something else reads nothing, too"
    reading.error = "JobState=NEW is not known"
    assert look(UNREAD_SECONDS) == "this control plane cannot read Slurm: JobState=NEW is not known"


def look(reach: AgentReach, reports: Sequence[int], nodes: int = 100) -> list[bool]:
    return [reach.are_silent(count, nodes) for count in reports]


LOOKS = int(UNHEARD_SECONDS / RENEWAL_SECONDS)


@pytest.mark.parametrize(("nodes", "silent"), [(100, True), (3, True), (2, False)])
def test_agents_that_all_fall_silent_are_missed_where_they_are_not_very_few(nodes: int, silent: bool) -> None:
    reach = AgentReach()
    assert not any(look(reach, range(1, 50), nodes))
    assert look(reach, [49] * LOOKS, nodes) == [False] * (LOOKS - 1) + [silent]


def test_one_report_ends_the_silence() -> None:
    reach = AgentReach()
    look(reach, range(1, 50))
    assert look(reach, [49] * LOOKS)[-1]
    assert look(reach, [50]) == [False]


def test_agents_that_report_rarely_are_missed_later() -> None:
    """Three nodes, each reports every 15 s."""
    reach = AgentReach()
    look(reach, [count // 10 for count in range(10, 100)])
    assert not any(look(reach, [count // 10 for count in range(100, 400)]))
    assert not any(look(reach, [39] * 20)), "the quiet is no longer than usual"
    assert look(reach, [39] * 10)[-1]


def test_a_leader_knows_what_it_misses() -> None:
    line, leaders, reading = Line(), Leaders(Leader("i", 1)), SlurmReading()
    reach = Reach(line.reach, lambda: reading, leaders)
    line.is_cut = True

    def look_for(seconds: float) -> str:
        for _ in range(int(seconds / RENEWAL_SECONDS)):
            line.ask_for(RENEWAL_SECONDS)
            found = reach.missing(line.able())
        return found

    for second in range(100):
        line.ask()
        line.now += 0.5
        reading.at = 1000.0 + second
        leaders.note(f"n{second % 5}", [], line.now)
        assert reach.missing(line.able()) == "", "a reading of Slurm is an answer"
    assert look_for(5) == "slurmctld does not answer this control plane"
    line.is_cut = False
    line.ask_for(2)
    assert [reach.missing(line.able()) for _ in range(2 * LOOKS)][-1].startswith("none of 5 agents reports")


@pytest.mark.parametrize(("before", "missing"), [(3, "none of 3 agents reports to this control plane"), (2, "")])
def test_a_leader_that_hears_none_of_the_agents_of_the_one_before_it_misses_them(before: int, missing: str) -> None:
    """They may know the address of the other one alone."""
    line, leaders, reading = Line(), Leaders(Leader("i", 1)), SlurmReading()
    reach = Reach(line.reach, lambda: reading, leaders)
    leaders.before = before
    assert reach.missing(line.able()) == missing
    leaders.note("n1", [], line.now)
    assert reach.missing(line.able()) == "", "one is heard"


def test_a_question_to_the_virtual_slurm_is_answered() -> None:
    reach = SlurmReach(VirtualSlurm(["n1"]), "testbed")
    begun = reach.due()
    assert begun is not None
    reach.ask(begun)
    assert reach.problem() == ""
