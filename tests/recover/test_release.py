"""A job that Understudy's Prolog kept off a node continues without a person; a job that others hold stays held."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal, refuse
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.fleet.recovery import Recovery, RecoveryKind, RecoveryStatus
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode
from understudy_controlplane.slurm.protocol import SlurmUnavailable
from understudy_wire.facts import JobRefused

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    """n5 is the only free node; its Prolog fails."""
    made = Rehearsal(tmp_path)
    made.fake.cancel(made.hungry)
    made.fake.bad_prologs.add("n5")
    return made


def job_of(rehearsal: Rehearsal, job_id: int) -> SlurmJob:
    return next(job for job in rehearsal.fake.jobs() if job.job_id == job_id)


def node_of(rehearsal: Rehearsal, name: str) -> SlurmNode:
    return next(node for node in rehearsal.fake.nodes() if node.name == name)


def hold(rehearsal: Rehearsal, user: str = "student", comment: str = "") -> int:
    """A job is refused on n5 and held, and n5 is drained."""
    job = rehearsal.fake.submit(user, 1, comment=comment)
    rehearsal.fake.advance(2)
    assert job_of(rehearsal, job).held_after_failed_launch
    assert node_of(rehearsal, "n5").reason == "Prolog error"
    return job


def say_refused(rehearsal: Rehearsal, job: int, node: str = "n5", restart_count: int | None = 0) -> None:
    fact = JobRefused(job, rehearsal.fake.now - 0.5, "quarantined by row 10", restart_count)
    rehearsal.control_plane.stores.facts.record(node, [fact], rehearsal.fake.now, lambda _: None)


def _has_failed(rehearsal: Rehearsal, job_id: int, launches: int) -> bool:
    return job_of(rehearsal, job_id).restart_count == launches


def releases(rehearsal: Rehearsal) -> list[Recovery]:
    recoveries = rehearsal.control_plane.stores.recoveries.newest(100)
    return [one for one in recoveries if one.plan.kind is RecoveryKind.RELEASE_JOB]


@pytest.mark.parametrize(("user", "comment"), [("student", ""), ("researcher", "understudy")])
def test_a_job_that_the_prolog_refused_is_released_and_starts_elsewhere_at_once(
    rehearsal: Rehearsal, user: str, comment: str
) -> None:
    job = hold(rehearsal, user, comment)
    say_refused(rehearsal, job)
    rehearsal.fake.cancel(rehearsal.gang)
    begun = rehearsal.fake.now
    rehearsal.run_until(lambda: job_of(rehearsal, job).state == "RUNNING", 20)
    assert rehearsal.fake.now - begun < 5
    assert job_of(rehearsal, job).nodes == ("n1",)
    rehearsal.run(3)
    (recovery,) = releases(rehearsal)
    assert recovery.status is RecoveryStatus.SUCCEEDED
    assert rehearsal.line.effects[f"release_job {job}"] == 1


def test_a_job_that_finds_no_free_node_is_free_all_the_same(rehearsal: Rehearsal) -> None:
    job = hold(rehearsal)
    say_refused(rehearsal, job)
    rehearsal.run(5)
    assert (job_of(rehearsal, job).state, job_of(rehearsal, job).reason) == ("PENDING", "Resources")
    assert [one.status for one in releases(rehearsal)] == [RecoveryStatus.SUCCEEDED]


def test_a_job_that_another_prolog_refused_is_not_touched(rehearsal: Rehearsal) -> None:
    job = hold(rehearsal)
    say_refused(rehearsal, job + 1)
    say_refused(rehearsal, job, restart_count=7)
    rehearsal.run(10)
    assert job_of(rehearsal, job).held_after_failed_launch
    assert releases(rehearsal) == []


def test_a_refusal_of_long_ago_releases_nothing(rehearsal: Rehearsal) -> None:
    say_refused(rehearsal, 3, restart_count=None)
    rehearsal.fake.advance(3601)
    assert hold(rehearsal) == 3
    rehearsal.run(5)
    assert job_of(rehearsal, 3).held_after_failed_launch
    assert releases(rehearsal) == []


def test_an_answer_that_is_lost_changes_nothing(rehearsal: Rehearsal) -> None:
    def lose_answer(name: str) -> None:
        raise SlurmUnavailable(f"{name}: Socket timed out on send/recv operation")

    rehearsal.line.after = lose_answer
    job = hold(rehearsal)
    say_refused(rehearsal, job)
    rehearsal.run(12)
    assert job_of(rehearsal, job).reason == "Resources"
    assert rehearsal.line.effects[f"release_job {job}"] == 1
    assert [one.status for one in releases(rehearsal)] == [RecoveryStatus.SUCCEEDED]


def test_a_job_refused_again_and_again_is_left_to_a_person(rehearsal: Rehearsal) -> None:
    """One node after the other refuses it; the budget is three an hour."""
    limited = rehearsal._config.jobs.model_copy(update={"releases_per_hour_max": 3})
    rehearsal._config = rehearsal._config.model_copy(update={"jobs": limited})
    rehearsal.restart_control_plane()
    job = hold(rehearsal)
    for attempt in range(4):
        say_refused(rehearsal, job, restart_count=attempt)
        rehearsal.run(3)
        if attempt < 3:
            rehearsal.fake.resume_node("n5")
            rehearsal.run_until(lambda: job_of(rehearsal, job).held_after_failed_launch, 20)
    rehearsal.run(10)
    assert len(releases(rehearsal)) == 3
    assert job_of(rehearsal, job).held_after_failed_launch
    recorded = [key for key in rehearsal.decisions() if key.startswith(f"job {job}|90|nothing|release_budget")]
    assert len(recorded) == 1


def test_a_job_held_for_too_many_failed_launches_is_released_where_the_last_was_understudys(
    rehearsal: Rehearsal,
) -> None:
    job = hold(rehearsal)
    for attempt in range(1, 5):  # those of the site's own Prolog
        rehearsal.fake.resume_node("n5")
        rehearsal.fake.release_job(job)
        rehearsal.fake.start_job(job)
        rehearsal.run_until(partial(_has_failed, rehearsal, job, attempt + 1), 20)
        rehearsal.run(2)
    assert job_of(rehearsal, job).reason == "launch_failure_limit_exceeded_requeued_held"
    say_refused(rehearsal, job, restart_count=4)
    rehearsal.run_until(lambda: not job_of(rehearsal, job).held, 20)
    assert rehearsal.line.effects[f"release_job {job}"] == 1


def test_a_gang_that_slurm_itself_holds_pages_a_person(rehearsal: Rehearsal) -> None:
    """The site's own Prolog failed: Understudy does not know why, and releases nothing."""
    job = hold(rehearsal, "researcher", "understudy")
    rehearsal.run(50)
    assert not any("needs.gang_held" in key for key in rehearsal.decisions())
    rehearsal.run(20)
    (page,) = [key for key in rehearsal.decisions() if "needs.gang_held" in key]
    assert "|320|page|" in page
    assert releases(rehearsal) == []
    rehearsal.fake.release_job(job)
    rehearsal.run(100)
    assert [key for key in rehearsal.decisions() if "needs.gang_held" in key] == [page]


@pytest.mark.parametrize("user", ["alice@corp.example.org", "CORP\\john smith", "svc$"])
def test_a_gang_of_a_user_of_a_directory_service_moves(tmp_path: Path, user: str) -> None:
    class OfDirectory(Rehearsal):
        gang_user = user

    rehearsal = OfDirectory(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 30)
    assert "n3" not in rehearsal.gang_nodes()


def test_in_observe_mode_a_held_job_is_only_spoken_of(rehearsal: Rehearsal) -> None:
    rehearsal.restart_control_plane(mode="observe")
    job = hold(rehearsal)
    say_refused(rehearsal, job)
    rehearsal.run(5)
    assert job_of(rehearsal, job).held_after_failed_launch
    assert f"job {job}|90|nothing|dry_run|prolog.job_held||" in rehearsal.decisions()


def test_a_node_drained_for_a_refusal_gets_understudys_reason(rehearsal: Rehearsal) -> None:
    job = hold(rehearsal)
    rehearsal.run(3)
    assert rehearsal.state_of("n5") is NodeState.FOREIGN_DRAIN, "the drain may be seen before the refusal is reported"
    say_refused(rehearsal, job)
    rehearsal.run(5)
    assert rehearsal.state_of("n5") is NodeState.QUARANTINED
    assert node_of(rehearsal, "n5").reason.startswith(f"understudy: prolog.drained: the Prolog kept job {job}")
    rehearsal.fake.resume_node("n5")
    rehearsal.fake.bad_prologs.clear()
    rehearsal.run(5)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert not node_of(rehearsal, "n5").draining


def test_a_node_drained_for_another_prolog_is_a_foreign_drain(rehearsal: Rehearsal) -> None:
    job = hold(rehearsal)
    say_refused(rehearsal, job, node="n6")
    rehearsal.run(10)
    assert rehearsal.state_of("n5") is NodeState.FOREIGN_DRAIN
    assert node_of(rehearsal, "n5").reason == "Prolog error"


def test_a_gang_held_in_the_middle_of_its_own_recovery_comes_back(rehearsal: Rehearsal) -> None:
    """Its spare's Prolog refuses it: that node was condemned while the gang was on its way there."""
    rehearsal.fake.bad_prologs = {"n6"}
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: job_of(rehearsal, rehearsal.gang).held_after_failed_launch, 30)
    say_refused(rehearsal, rehearsal.gang, node="n6", restart_count=1)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 2), 60)
    assert not {"n3", "n6"} & set(rehearsal.gang_nodes())
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.reservation_names() <= {"understudy_spares"}


class TestVerdict:
    """The verdict that agents get about their node."""

    def test_the_verdict_is_good_once_slurm_has_the_drain(self, rehearsal: Rehearsal) -> None:
        rehearsal.fail("n3")
        rehearsal.run_until(lambda: node_of(rehearsal, "n3").draining)
        rehearsal.run(1)
        assert self.unfit(rehearsal, "n3") == ""

    def test_a_node_that_slurm_would_not_drain_is_unfit_until_it_does(self, rehearsal: Rehearsal) -> None:
        rehearsal.line.before = refuse("drain_node")
        rehearsal.fail("n3")
        rehearsal.run(2)
        assert "row 10" in self.unfit(rehearsal, "n3")
        assert self.unfit(rehearsal, "n4") == ""
        rehearsal.line.before = lambda _name: None
        rehearsal.run_until(lambda: node_of(rehearsal, "n3").draining)
        rehearsal.run(1)
        assert self.unfit(rehearsal, "n3") == ""

    def test_a_wrong_rule_that_condemns_every_node_closes_no_more_than_may_be_quarantined(
        self, rehearsal: Rehearsal
    ) -> None:
        rehearsal.line.before = refuse("drain_node")
        for number in range(1, 9):
            rehearsal.fail(f"n{number}")
        rehearsal.run(5)
        assert sum(bool(self.unfit(rehearsal, f"n{number}")) for number in range(1, 9)) == 3

    def test_an_old_snapshot_gives_no_verdict(self, rehearsal: Rehearsal) -> None:
        rehearsal.line.before = refuse("drain_node")
        rehearsal.fail("n3")
        rehearsal.run(2)
        assert self.unfit(rehearsal, "n3")
        rehearsal.fake.advance(10)
        assert self.unfit(rehearsal, "n3") == ""

    def test_there_is_no_bad_verdict_in_observe_mode_or_while_paused(self, rehearsal: Rehearsal) -> None:
        rehearsal.line.before = refuse("drain_node")
        rehearsal.fail("n3")
        rehearsal.run(2)
        assert self.unfit(rehearsal, "n3")
        rehearsal.control_plane.stores.requests.ask(Verb.PAUSE, FLEET, "maintenance", "alice", rehearsal.fake.now)
        rehearsal.run(1)
        assert self.unfit(rehearsal, "n3") == ""
        rehearsal.control_plane.stores.requests.ask(Verb.RESUME, FLEET, "done", "alice", rehearsal.fake.now)
        rehearsal.restart_control_plane(mode="observe")
        rehearsal.run(1)
        assert self.unfit(rehearsal, "n3") == ""

    @staticmethod
    def unfit(rehearsal: Rehearsal, node: str) -> str:
        return rehearsal.control_plane.loop.verdicts.unfit(node, rehearsal.fake.now)
