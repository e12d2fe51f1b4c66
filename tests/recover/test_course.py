"""A plan is held against the newest facts before each effect: it may be overtaken, paused or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recover.rehearsal import EFFECTS, REPAIR_EFFECTS, Rehearsal, first, refuse
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb, cancel_subject
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, ReturnPlan, StepName
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def switch(rehearsal: Rehearsal, verb: Verb) -> None:
    rehearsal.control_plane.stores.requests.ask(verb, FLEET, "maintenance", "alice", rehearsal.fake.now)


def cancel(rehearsal: Rehearsal, recovery: Recovery, reason: str = "wrong node") -> None:
    subject, now = cancel_subject(recovery.id), rehearsal.fake.now
    rehearsal.control_plane.stores.requests.ask(Verb.CANCEL, subject, reason, "alice", now)


def seats_are_held(rehearsal: Rehearsal) -> bool:
    return "understudy_seats_1" in rehearsal.reservation_names()


def stop_before(rehearsal: Rehearsal, effect: str, then: Callable[[], None]) -> None:
    """Just before this effect something happens, and Slurm does not answer the call."""
    done: list[str] = []

    def before(name: str) -> None:
        if name == effect and not done:
            done.append(name)
            then()
            raise SlurmUnavailable(f"{name}: Socket timed out on send/recv operation")

    rehearsal.line.before = before


def is_drained(rehearsal: Rehearsal, name: str) -> bool:
    return next(node for node in rehearsal.fake.nodes() if node.name == name).draining


def effects(rehearsal: Rehearsal) -> int:
    return sum(rehearsal.line.effects.values())


def all_recoveries(rehearsal: Rehearsal) -> list[Recovery]:
    return list(reversed(rehearsal.control_plane.stores.recoveries.newest(50)))


class TestOvertaken:
    def test_a_fault_that_is_gone_before_the_drain_began_drains_nothing(self, rehearsal: Rehearsal) -> None:
        """The control plane was switched to observe just then, for three days, in which the node was rebooted."""
        stop_before(rehearsal, "drain_node", lambda: None)
        self.plan_without_acting(rehearsal)
        rehearsal.restart_control_plane(mode="observe")
        rehearsal.fake.now += 3 * 24 * 3600
        rehearsal.booted_again.add("n3")
        rehearsal.restart_control_plane(mode="act")
        rehearsal.line.effects.clear()
        rehearsal.run(60)
        assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
        assert rehearsal.gang_state() == ("RUNNING", 0)
        assert not is_drained(rehearsal, "n3")
        assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.OVERTAKEN]
        assert rehearsal.line.effects["requeue_job 1"] == rehearsal.line.effects["drain_node n3"] == 0

    @staticmethod
    def plan_without_acting(rehearsal: Rehearsal) -> None:
        """A recovery that is written down, and has not come to its first step."""
        rehearsal.fail("n3")
        real = rehearsal.control_plane.loop._runner.advance
        rehearsal.control_plane.loop._runner.advance = lambda *_: True  # type: ignore[method-assign]
        rehearsal.run(0.5)
        rehearsal.control_plane.loop._runner.advance = real  # type: ignore[method-assign]
        assert rehearsal.state_of("n3") is NodeState.QUARANTINED
        (recovery,) = rehearsal.recoveries()
        assert {step.attempts for step in recovery.steps} == {0}

    def test_a_fault_that_is_still_there_after_the_downtime_is_dealt_with(self, rehearsal: Rehearsal) -> None:
        self.plan_without_acting(rehearsal)
        rehearsal.fake.now += 3 * 3600
        rehearsal.restart_control_plane()
        rehearsal.run_until(rehearsal.ended)
        assert rehearsal.gang_state() == ("RUNNING", 1)
        assert is_drained(rehearsal, "n3")

    def test_a_gang_that_was_restarted_meanwhile_is_not_restarted_for_the_old_plan(self, rehearsal: Rehearsal) -> None:
        def restarted_by_its_owner() -> None:
            rehearsal.fake.cancel(rehearsal.hungry)
            rehearsal.fake.requeue_job(rehearsal.gang)
            rehearsal.fake.advance(2)
            rehearsal.fake.start_job(rehearsal.gang)
            rehearsal.fake.advance(3)

        stop_before(rehearsal, "create_reservation", restarted_by_its_owner)
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        (recovery,) = rehearsal.recoveries()
        assert recovery.status is RecoveryStatus.OVERTAKEN
        assert "was restarted meanwhile (restart 1)" in recovery.outcome
        assert rehearsal.gang_state() == ("RUNNING", 1)
        assert "n3" not in rehearsal.gang_nodes()
        assert rehearsal.line.effects["create_reservation understudy_seats_1"] == 0
        assert is_drained(rehearsal, "n3")

    def test_a_drain_that_was_refused_until_the_gang_was_restarted_is_not_taken_for_lifted(
        self, rehearsal: Rehearsal
    ) -> None:
        tried: list[str] = []

        def refused_and_restarted(name: str) -> None:
            if name == "drain_node" and not tried:
                tried.append(name)
                rehearsal.fake.cancel(rehearsal.hungry)
                rehearsal.fake.requeue_job(rehearsal.gang)
                rehearsal.fake.advance(2)
                rehearsal.fake.start_job(rehearsal.gang)
                rehearsal.fake.advance(3)
                raise SlurmError("Access/permission denied")

        rehearsal.line.before = refused_and_restarted
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        assert rehearsal.recoveries()[0].status is RecoveryStatus.OVERTAKEN
        rehearsal.run(60)
        assert rehearsal.state_of("n3") is NodeState.QUARANTINED
        assert is_drained(rehearsal, "n3")
        assert "n3" not in rehearsal.gang_nodes()


class TestResumedByAPerson:
    @pytest.mark.parametrize("effect", first(1, "set_job_reservation", "create_reservation", "set_reservation_nodes"))
    def test_during_a_swap_the_gang_stays_and_the_drain_is_not_repeated(
        self, rehearsal: Rehearsal, effect: str
    ) -> None:
        stop_before(rehearsal, effect, lambda: rehearsal.fake.resume_node("n3"))
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        rehearsal.run(30)
        (recovery,) = rehearsal.recoveries()
        assert recovery.status is RecoveryStatus.OVERTAKEN
        assert "n3 is back in service" in recovery.outcome
        assert rehearsal.gang_state() == ("RUNNING", 0)
        assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
        assert not is_drained(rehearsal, "n3")
        assert rehearsal.line.effects["drain_node n3"] == 1
        assert not seats_are_held(rehearsal)

    def test_a_node_that_returned_right_before_slurmctld_crashed_is_resumed_again(self, rehearsal: Rehearsal) -> None:
        def ask(verb: Verb) -> None:
            rehearsal.control_plane.stores.requests.ask(verb, "n6", "fan", "alice", rehearsal.fake.now)

        ask(Verb.HOLD)
        rehearsal.run(20)
        saved = rehearsal.fake.saved_state()
        ask(Verb.RELEASE)
        rehearsal.run(3)
        assert not is_drained(rehearsal, "n6")
        rehearsal.fake.crash(saved)
        assert is_drained(rehearsal, "n6")
        rehearsal.run(5)
        assert rehearsal.state_of("n6") is NodeState.IN_SERVICE
        assert not is_drained(rehearsal, "n6")

    def test_a_node_whose_return_is_cancelled_before_slurm_resumed_it_is_held(self, rehearsal: Rehearsal) -> None:
        """It was drained for good, and by an unknown administrator, as far as the control plane knew."""

        def ask(verb: Verb) -> None:
            rehearsal.control_plane.stores.requests.ask(verb, "n6", "fan", "alice", rehearsal.fake.now)

        ask(Verb.HOLD)
        rehearsal.run(5)
        rehearsal.line.before = refuse("resume_node")
        ask(Verb.RELEASE)
        rehearsal.run(1)
        assert rehearsal.state_of("n6") is NodeState.IN_SERVICE
        cancel(rehearsal, next(one for one in all_recoveries(rehearsal) if isinstance(one.plan, ReturnPlan)))
        rehearsal.run(5)
        assert rehearsal.state_of("n6") is NodeState.OPERATOR_HOLD
        rehearsal.line.before = lambda _name: None
        ask(Verb.RELEASE)
        rehearsal.run(5)
        assert rehearsal.state_of("n6") is NodeState.IN_SERVICE
        assert not is_drained(rehearsal, "n6")

    def test_a_drain_that_was_made_when_its_recovery_was_cancelled_has_an_owner(self, rehearsal: Rehearsal) -> None:
        """The recovery has not yet read it back. The node stays drained, until a person resumes it."""

        def drained_and_cancelled(name: str) -> None:
            if name == "drain_node":
                cancel(rehearsal, rehearsal.recoveries()[0])
                raise SlurmUnavailable("Socket timed out on send/recv operation")

        rehearsal.line.after = drained_and_cancelled
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        rehearsal.line.after = lambda _name: None
        rehearsal.run(5)
        assert is_drained(rehearsal, "n3")
        assert rehearsal.state_of("n3") is NodeState.QUARANTINED
        rehearsal.fake.resume_node("n3")
        rehearsal.run(20)
        assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
        assert rehearsal.line.effects["drain_node n3"] == 1


class TestPaused:
    @pytest.mark.parametrize(
        "effect", first(2, "create_reservation", "requeue_job", "drain_node", "set_reservation_nodes")
    )
    def test_what_is_under_way_stops_before_its_next_effect(self, rehearsal: Rehearsal, effect: str) -> None:
        """It goes on after the pause, and the pause does not count against any step."""
        stop_before(rehearsal, effect, lambda: switch(rehearsal, Verb.PAUSE))
        rehearsal.fail("n3")
        if effect == "requeue_job":
            rehearsal.run_until(rehearsal.ended)  # that call may have been carried out
            return
        rehearsal.run_until(
            lambda: in_force(rehearsal.control_plane.stores.requests.stored(), rehearsal.fake.now).pause.reason
        )
        rehearsal.run(1)
        before = effects(rehearsal)
        rehearsal.run(600)
        assert effects(rehearsal) == before
        assert rehearsal.gang_state() == ("RUNNING", 0)
        switch(rehearsal, Verb.RESUME)
        rehearsal.run_until(rehearsal.ended)
        assert rehearsal.gang_state() == ("RUNNING", 1)
        assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUCCEEDED]

    @pytest.mark.parametrize(("verb", "state"), [(Verb.PAUSE, "RUNNING"), (Verb.PAUSE_NOW, "PENDING")])
    def test_between_two_attempts_only_a_pause_with_now_stops_it(
        self, rehearsal: Rehearsal, verb: Verb, state: str
    ) -> None:
        stop_before(rehearsal, "start_job", lambda: switch(rehearsal, verb))
        rehearsal.fail("n3")
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("PENDING", 1))
        rehearsal.run(30)
        assert rehearsal.gang_state() == (state, 1)
        switch(rehearsal, Verb.RESUME)
        rehearsal.run_until(rehearsal.ended)
        assert rehearsal.gang_state() == ("RUNNING", 1)

    def test_what_people_ask_for_is_done_in_a_pause(self, rehearsal: Rehearsal) -> None:
        switch(rehearsal, Verb.PAUSE)
        rehearsal.control_plane.stores.requests.ask(Verb.HOLD, "n8", "new cable", "alice", rehearsal.fake.now)
        rehearsal.run(10)
        assert is_drained(rehearsal, "n8")
        assert rehearsal.state_of("n8") is NodeState.OPERATOR_HOLD


class TestCancelled:
    def test_before_the_requeue_all_is_undone_but_the_drain_and_the_gang_is_not_moved_again(
        self, rehearsal: Rehearsal
    ) -> None:
        stop_before(rehearsal, "set_job_reservation", lambda: cancel(rehearsal, rehearsal.recoveries()[0]))
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        rehearsal.run(60)
        (recovery,) = rehearsal.recoveries()
        assert recovery.status is RecoveryStatus.CANCELLED
        assert recovery.outcome == "cancelled by alice: wrong node; left: n3 stays drained (quarantined)"
        assert rehearsal.gang_state() == ("RUNNING", 0)
        assert rehearsal.reservation_names() == {"understudy_spares"}
        assert "n6" in rehearsal.pool()
        assert any("|cancelled" in key for key in rehearsal.decisions())
        assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).cancels == {}, "the request is answered"

    def test_before_the_drain_the_node_stays_in_service(self, rehearsal: Rehearsal) -> None:
        stop_before(rehearsal, "drain_node", lambda: cancel(rehearsal, rehearsal.recoveries()[0]))
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        rehearsal.run(60)
        assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.CANCELLED]
        assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
        assert not is_drained(rehearsal, "n3")
        assert rehearsal.gang_state() == ("RUNNING", 0)

    def test_after_the_requeue_the_job_waits_in_the_queue_and_the_outcome_names_it(self, rehearsal: Rehearsal) -> None:
        stop_before(rehearsal, "start_job", lambda: cancel(rehearsal, rehearsal.recoveries()[0]))
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        (recovery,) = rehearsal.recoveries()
        assert recovery.status is RecoveryStatus.CANCELLED
        assert "job 1 waits in Slurm's queue" in recovery.outcome
        assert not seats_are_held(rehearsal)

    def test_another_fault_of_the_gang_is_dealt_with(self, rehearsal: Rehearsal) -> None:
        stop_before(rehearsal, "set_job_reservation", lambda: cancel(rehearsal, rehearsal.recoveries()[0]))
        rehearsal.fail("n3")
        rehearsal.run_until(rehearsal.ended)
        rehearsal.fail("n1")
        rehearsal.run_until(lambda: rehearsal.gang_state()[1] == 1)
        assert len(rehearsal.recoveries()) == 2

    def test_also_in_a_pause(self, rehearsal: Rehearsal) -> None:
        rehearsal.fail("n3")
        rehearsal.run_until(lambda: seats_are_held(rehearsal))
        switch(rehearsal, Verb.PAUSE_NOW)
        rehearsal.run(5)
        cancel(rehearsal, rehearsal.recoveries()[0])
        rehearsal.run(5)
        assert not seats_are_held(rehearsal)


def test_in_mode_observe_nothing_is_planned_that_would_be_done_later(rehearsal: Rehearsal) -> None:
    rehearsal.control_plane.stores.requests.ask(Verb.HOLD, "n5", "new cable", "alice", rehearsal.fake.now)
    rehearsal.run(10)
    assert rehearsal.state_of("n5") is NodeState.OPERATOR_HOLD
    rehearsal.restart_control_plane(mode="observe")
    rehearsal.line.effects.clear()
    rehearsal.control_plane.stores.requests.ask(Verb.HOLD, "n8", "new cable", "alice", rehearsal.fake.now)
    rehearsal.fake.resume_node("n5")
    rehearsal.run(10)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert rehearsal.state_of("n8") is NodeState.IN_SERVICE
    rehearsal.restart_control_plane(mode="act")
    rehearsal.run(30)
    assert not {name.split()[0] for name in rehearsal.line.effects} & (EFFECTS | REPAIR_EFFECTS) - {
        "set_reservation_nodes"
    }
    assert not is_drained(rehearsal, "n8")


def test_seats_are_kept_while_an_epilog_takes_three_minutes(rehearsal: Rehearsal) -> None:
    rehearsal.fake.epilog_seconds = 180.0
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("PENDING", 1), 200)
    assert seats_are_held(rehearsal)
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]


def test_of_several_reservations_a_job_gets_the_first_back_and_the_others_are_named(rehearsal: Rehearsal) -> None:
    rehearsal.fake.create_reservation("team_a", ["n1", "n2", "n3", "n4"], "researcher", 6000)
    rehearsal.fake.create_reservation("team_b", ["n5"], "researcher", 6000)
    rehearsal.fake.bind_to_several(rehearsal.gang, "team_a,team_b")
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    job = next(job for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    assert (job.state, job.restart_count, job.reservation) == ("RUNNING", 1, "team_a")
    released = rehearsal.recoveries()[0].step(StepName.RELEASE_SEATS)
    assert released is not None
    assert released.detail == "the job is no longer bound to reservation team_b"
