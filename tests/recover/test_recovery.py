"""What recovery promises, on a virtual cluster: whatever Slurm and people do meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.recover.rehearsal import EFFECTS, Rehearsal, first, refuse
from tests.simulator.slurm import SLURMD_TIMEOUT_SECONDS
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import PoolSwapPlan, RecoveryStatus, StepName, StepStatus
from understudy_controlplane.fleet.slurm import HETEROGENEOUS_JOB, ArrayTask, SlurmJob, SlurmNode
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.recover.runner import FRESH_SECONDS
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable
from understudy_controlplane.store.queries import Queries
from understudy_wire.facts import RankStarted

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def assert_gang_is_back(rehearsal: Rehearsal, nodes: list[str], restarts: int = 1) -> None:
    assert rehearsal.gang_state() == ("RUNNING", restarts), rehearsal.describe()
    assert rehearsal.gang_nodes() == nodes
    assert rehearsal.hungry_state() == "PENDING"
    assert rehearsal.reservation_names() <= {"understudy_spares"}


@pytest.mark.parametrize("kill", [False, True])
def test_the_gang_is_back_on_a_spare_and_no_other_job_took_its_seats(rehearsal: Rehearsal, kill: bool) -> None:
    rehearsal.kill_node("n3") if kill else rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.SUCCEEDED
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


def test_a_gang_whose_nodes_take_long_to_answer_moves(rehearsal: Rehearsal) -> None:
    """So large a gang that Slurm's answer is no longer fresh when all of its slurmds have been asked."""
    one_by_one = threading.Lock()

    def slow(node: SlurmNode) -> bool:
        with one_by_one:
            rehearsal.fake.advance(FRESH_SECONDS / 2)
        return True

    rehearsal.probe = slow
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 20)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_every_effect_is_made_once(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    twice = {effect for effect, count in rehearsal.line.effects.items() if count > 1}
    # Bound and unbound, taken from the pool and filled up again: these are two effects each.
    assert twice <= {f"set_job_reservation {rehearsal.gang}", "set_reservation_nodes understudy_spares"}
    assert rehearsal.line.effects[f"requeue_job {rehearsal.gang}"] == 1


@pytest.mark.parametrize("kill", [False, True])
def test_an_effect_whose_answer_is_lost_is_not_made_again(rehearsal: Rehearsal, kill: bool) -> None:
    """Every call is carried out, and every one looks as if it had timed out."""

    def lose_answer(name: str) -> None:
        raise SlurmUnavailable(f"{name}: Socket timed out on send/recv operation")

    rehearsal.line.after = lose_answer
    rehearsal.kill_node("n3") if kill else rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.line.effects["requeue_job 1"] == (0 if kill else 1)
    assert rehearsal.line.effects["drain_node n3"] == 1
    assert rehearsal.line.effects["create_reservation understudy_seats_1"] == 1


@pytest.mark.parametrize(
    "effect", first(2, *sorted(EFFECTS - {"resume_node", "down_nodes", "keep_batch_host", "release_job"}, reverse=True))
)
def test_slurm_away_for_five_minutes_at_any_step_delays_the_recovery_and_no_more(
    rehearsal: Rehearsal, effect: str
) -> None:
    away_until: list[float] = []

    def away(name: str) -> None:
        if name == effect and not away_until:
            away_until.append(rehearsal.fake.now + 300)
        if away_until and rehearsal.fake.now < away_until[0]:
            raise SlurmUnavailable("Unable to contact slurm controller (connect failure)")

    rehearsal.line.before = away
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 400)
    assert away_until, f"{effect} was never tried"
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


@pytest.mark.parametrize("seconds", first(3, 0.4, 1.0, 2.4, 0.2, 0.6, 1.6, 3.2))
def test_a_control_plane_that_restarts_in_the_middle_continues(rehearsal: Rehearsal, seconds: float) -> None:
    rehearsal.fail("n3")
    rehearsal.run(seconds)
    rehearsal.restart_control_plane()
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert len(rehearsal.recoveries()) == 1
    assert rehearsal.line.effects["requeue_job 1"] == 1


def test_what_slurm_refuses_for_good_fails_the_recovery_and_leaves_the_job_running(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("create_reservation")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 200)
    recovery = rehearsal.recoveries()[0]
    assert recovery.status is RecoveryStatus.FAILED
    assert "hold_seats" in recovery.outcome
    assert rehearsal.gang_state() == ("RUNNING", 0)


def test_a_refusal_after_the_seats_were_held_gives_them_and_the_spare_back(rehearsal: Rehearsal) -> None:
    rehearsal.fake.drain_by("alice", "n5", "no node takes the place of n6")
    rehearsal.line.before = refuse("requeue_job")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 200)
    recovery = rehearsal.recoveries()[0]
    assert recovery.status is RecoveryStatus.FAILED
    assert "n6" in rehearsal.pool(), "before its seats were released: the hungry job has not got it"
    back = [recovery.step(name) for name in (StepName.RETURN_SPARES, StepName.RELEASE_SEATS)]
    assert [step.status.value for step in back if step is not None] == ["done", "done"]
    assert "understudy_seats_1" not in rehearsal.reservation_names()
    assert rehearsal.gang_state() == ("RUNNING", 0)


def one_spare(rehearsal: Rehearsal) -> None:
    rehearsal.fake.cancel_job(rehearsal.hungry)
    rehearsal.fake.set_reservation_nodes("understudy_spares", ["n8"])
    rehearsal.set_config(spares={"count": 1})
    rehearsal.run(3)


def test_a_spare_whose_place_in_the_pool_another_node_has_taken_does_not_go_back_into_it(rehearsal: Rehearsal) -> None:
    one_spare(rehearsal)
    rehearsal.fake.epilog_seconds = 20
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state()[1] == 1)
    rehearsal.run_until(lambda: rehearsal.pool() == ["n7"])
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended, 300)
    rehearsal.run(60)
    assert rehearsal.pool() == ["n7"]


def test_idle_nodes_that_a_gang_was_to_get_beside_a_spare_do_not_join_the_pool(rehearsal: Rehearsal) -> None:
    one_spare(rehearsal)
    for name in ("n6", "n7"):
        rehearsal.fake.drain_by("alice", name, "no node takes the place of n8")
    rehearsal.line.before = refuse("requeue_job")
    rehearsal.fail("n3")
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended, 300)
    (plan,) = [one.plan for one in rehearsal.recoveries() if isinstance(one.plan, PoolSwapPlan)]
    assert (set(plan.spares), plan.from_pool) == ({"n5", "n8"}, ("n8",))
    assert rehearsal.pool() == ["n8"]


def test_a_gang_whose_recovery_failed_is_tried_again_within_its_budget(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("requeue_job")
    rehearsal.fail("n3")
    rehearsal.run(1500)
    assert len(rehearsal.recoveries()) == 6  # swaps_per_hour_max
    assert rehearsal.gang_state() == ("RUNNING", 0)


def test_a_job_cancelled_in_the_middle_ends_the_recovery_and_frees_the_seats(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state()[1] == 1)
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended)
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.OVERTAKEN
    assert "CANCELLED" in recovery.outcome
    assert "n3 stays drained (quarantined)" in recovery.outcome
    assert "understudy_seats_1" not in rehearsal.reservation_names()


def seats_are_held(rehearsal: Rehearsal) -> bool:
    return "understudy_seats_1" in rehearsal.reservation_names()


@pytest.mark.parametrize("how", ["CANCELLED", "COMPLETED"])
@pytest.mark.parametrize("moment", first(1, "set_job_reservation", "create_reservation", "set_reservation_nodes"))
def test_a_job_that_its_owner_ends_during_the_swap_never_runs_again(
    rehearsal: Rehearsal, how: str, moment: str
) -> None:
    """Its epilogs take twenty seconds, during which Slurm shows it as COMPLETING and would requeue it."""
    rehearsal.fake.epilog_seconds = 20.0

    def end(name: str) -> None:
        if name == moment and rehearsal.gang_state()[0] == "RUNNING":
            gang = rehearsal.gang
            rehearsal.fake.cancel(gang) if how == "CANCELLED" else rehearsal.fake.end(gang)

    rehearsal.line.after = end
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 15)
    assert rehearsal.gang_state() == ("COMPLETING", 0)
    assert not seats_are_held(rehearsal), "the seats are not kept for the time of the epilogs"
    rehearsal.run(30)
    assert rehearsal.gang_state() == (how, 0)
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.OVERTAKEN
    assert "completing" in recovery.outcome


@pytest.mark.parametrize(
    "moment", first(1, "set_job_reservation", "drain_node", "create_reservation", "set_reservation_nodes")
)
def test_a_job_whose_owner_opts_out_during_the_swap_goes_on_as_it_is(rehearsal: Rehearsal, moment: str) -> None:
    def opt_out(name: str) -> None:
        if name == moment:
            rehearsal.fake.set_job_comment(rehearsal.gang, "left alone, please")

    rehearsal.line.after = opt_out
    rehearsal.fail("n3")
    rehearsal.run(30)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert not seats_are_held(rehearsal)
    assert len(rehearsal.pool()) == 3
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.OVERTAKEN
    assert "is not managed any more" in recovery.outcome


@pytest.mark.parametrize("moment", first(1, "set_job_reservation", "create_reservation", "set_reservation_nodes"))
def test_a_job_that_is_suspended_during_the_swap_is_not_requeued_before_it_is_resumed(
    rehearsal: Rehearsal, moment: str
) -> None:
    rehearsal.line.after = lambda name: rehearsal.fake.suspend(rehearsal.gang) if name == moment else None
    rehearsal.fail("n3")
    rehearsal.run(20)
    job = rehearsal.fake.job(rehearsal.gang)
    assert job is not None
    assert (job.state, job.restart_count) == ("SUSPENDED", 0)
    rehearsal.line.after = lambda _name: None
    rehearsal.fake.go_on(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_begin_time_that_its_owner_sets_during_the_swap_stands(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = lambda name: (
        rehearsal.fake.begin_later(rehearsal.gang, 7200) if name == "start_job" else None
    )
    rehearsal.line.after = rehearsal.line.before
    rehearsal.fail("n3")
    rehearsal.run(30)
    job = rehearsal.fake.job(rehearsal.gang)
    assert job is not None
    assert (job.state, job.reason) == ("PENDING", "BeginTime")
    assert rehearsal.line.effects[f"start_job {rehearsal.gang}"] == 1


def test_a_job_cancelled_in_the_moment_of_the_requeue_never_runs_again(rehearsal: Rehearsal) -> None:
    rehearsal.fake.epilog_seconds = 20.0
    rehearsal.line.before = lambda name: rehearsal.fake.cancel(rehearsal.gang) if name == "requeue_job" else None
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 15)
    rehearsal.run(30)
    assert rehearsal.gang_state() == ("CANCELLED", 0)
    assert rehearsal.recoveries()[0].status is RecoveryStatus.OVERTAKEN


def test_a_job_cancelled_during_the_swap_is_not_moved_by_the_next_fault_either(rehearsal: Rehearsal) -> None:
    rehearsal.fake.epilog_seconds = 20.0

    def cancel(name: str) -> None:
        if name == "set_job_reservation" and rehearsal.gang_state()[0] == "RUNNING":
            rehearsal.fake.cancel(rehearsal.gang)
            rehearsal.fail("n6")

    rehearsal.line.after = cancel
    rehearsal.fail("n3")
    rehearsal.run(40)
    assert rehearsal.gang_state() == ("CANCELLED", 0)
    assert len(rehearsal.recoveries()) == 1


def test_a_job_whose_script_fails_during_the_swap_is_moved_all_the_same(rehearsal: Rehearsal) -> None:
    """The gang crashes for the very fault that it is moved for."""
    rehearsal.fake.epilog_seconds = 5.0

    def fail(name: str) -> None:
        if name == "set_job_reservation" and rehearsal.gang_state() == ("RUNNING", 0):
            rehearsal.fake.end(rehearsal.gang, "FAILED")

    rehearsal.line.after = fail
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_call_that_always_times_out_fails_its_own_recovery_in_time(rehearsal: Rehearsal) -> None:
    """Reading works meanwhile."""

    def time_out(name: str) -> None:
        if name == "set_job_reservation":
            raise SlurmUnavailable("Socket timed out on send/recv operation")

    rehearsal.line.before = time_out
    begun = rehearsal.fake.now
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 200)
    recovery = rehearsal.recoveries()[0]
    assert recovery.status is RecoveryStatus.FAILED
    assert "bind_job: not done after 120 s" in recovery.outcome
    assert "Socket timed out" in recovery.outcome
    assert rehearsal.fake.now - begun < 150
    assert not seats_are_held(rehearsal)


def test_a_gang_whose_start_is_refused_comes_back_on_its_seats_when_slurms_own_delay_is_over(
    tmp_path: Path,
) -> None:
    """Seats that are given up before that would leave it in the queue, though they were held for it."""
    rehearsal = Rehearsal(tmp_path, recovery={"step_timeout_seconds": 60})
    rehearsal.line.before = refuse("start_job")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 300)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.recoveries()[0].status is RecoveryStatus.SUCCEEDED


def test_a_call_that_times_out_stops_no_clock_of_another_recovery(rehearsal: Rehearsal) -> None:
    def one_refuses_the_other_hangs(name: str) -> None:
        if name == "set_job_reservation":
            raise SlurmError("set_job_reservation: Access/permission denied")
        if name == "drain_node" and seats_are_held(rehearsal):
            raise SlurmUnavailable("Socket timed out on send/recv operation")

    rehearsal.line.before = one_refuses_the_other_hangs
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: seats_are_held(rehearsal))
    rehearsal.fail("n5")
    rehearsal.run_until(rehearsal.ended, 150)
    assert "bind_job: not done after 120 s" in rehearsal.recoveries()[0].outcome


def test_a_reading_that_fails_now_and_then_does_not_keep_a_recovery_alive(rehearsal: Rehearsal) -> None:
    """The time between two readings that worked counts, whatever was between other ones."""
    calls = [0]

    def now_and_then(name: str) -> None:
        calls[0] += name == "nodes"
        if name == "nodes" and calls[0] % 5 == 0:
            raise SlurmUnavailable("Unable to contact slurm controller (connect failure)")
        if name == "set_job_reservation":
            raise SlurmError("set_job_reservation: Access/permission denied")

    rehearsal.line.before = now_and_then
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 600)
    assert rehearsal.recoveries()[0].status is RecoveryStatus.FAILED


def test_a_call_that_hangs_holds_up_neither_the_loop_nor_another_recovery(rehearsal: Rehearsal) -> None:
    answered = threading.Event()

    def hang(name: str) -> None:
        if name == "create_reservation":
            answered.wait(60)

    rehearsal.line.before = hang
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n3"])
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n5"], 10)
    assert not seats_are_held(rehearsal)
    answered.set()
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert rehearsal.line.effects["create_reservation understudy_seats_1"] == 1


def test_a_job_that_ends_by_itself_before_the_requeue_is_left_alone(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("set_job_reservation")
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: "understudy_seats_1" in rehearsal.reservation_names())
    rehearsal.fake.end(rehearsal.gang)
    rehearsal.line.before = lambda _name: None
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("COMPLETED", 0)
    assert rehearsal.reservation_names() <= {"understudy_spares"}
    assert rehearsal.line.effects["requeue_job 1"] == 0


@pytest.mark.parametrize("step", [StepName.START_JOB, StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP])
def test_a_job_that_completes_after_its_requeue_ends_the_swap_as_done(rehearsal: Rehearsal, step: StepName) -> None:
    """So quickly that no reading of Slurm shows it at work, or before its ranks have connected or finished a step."""
    job = rehearsal.fake.job(rehearsal.gang)
    assert job is not None

    def connect(rank: int, restart_count: int) -> None:
        known = rehearsal.control_plane.stores.fleet.known_jobs(b.CLUSTER, [rehearsal.gang])
        started = RankStarted(rehearsal.gang, restart_count, rank, 2, rehearsal.fake.now, 5, user_id=job.user_id)
        assert rehearsal.control_plane.stores.facts.record("n1", [started], rehearsal.clock.now(), known.get) == []

    def end_once_it_runs() -> None:
        if rehearsal.gang_state() == ("RUNNING", 1):
            rehearsal.fake.end(rehearsal.gang)

    def under_way() -> StepName:
        return next(one.name for one in rehearsal.recoveries()[-1].steps if one.status is not StepStatus.DONE)

    connect(0, 0)
    rehearsal.fail("n3")
    if step is StepName.START_JOB:
        rehearsal.each_tick = end_once_it_runs
    else:
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
        for rank in range(2 if step is StepName.AWAIT_FIRST_STEP else 1):
            connect(rank, 1)
        rehearsal.run(5)
        assert under_way() is step
        rehearsal.fake.end(rehearsal.gang)
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("COMPLETED", 1)
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.SUCCEEDED, rehearsal.describe()
    assert next(one.name for one in recovery.steps if one.detail == "the job has completed") is step
    assert not seats_are_held(rehearsal)


def test_a_spare_that_breaks_before_the_gang_starts_is_replaced(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: "understudy_seats_1" in rehearsal.reservation_names())
    rehearsal.fail("n6")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n7"])
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUPERSEDED, RecoveryStatus.SUCCEEDED]


def test_a_spare_that_an_administrator_takes_before_the_gang_starts_is_replaced_and_left_alone(
    rehearsal: Rehearsal,
) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("PENDING", 1))
    rehearsal.fake.drain_by("alice", "n6", "new cable")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n5"])  # idle n5 had joined the pool
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUPERSEDED, RecoveryStatus.SUCCEEDED]
    taken = next(node for node in rehearsal.fake.nodes() if node.name == "n6")
    assert (taken.draining, taken.reason, taken.reason_user) == (True, "new cable", "alice")
    assert rehearsal.state_of("n6") is NodeState.FOREIGN_DRAIN
    assert rehearsal.control_plane.stores.incidents.open_incidents().keys() == {Subject.of_node("n3")}


def test_a_dead_node_that_an_administrator_drains_meanwhile_is_left_alone(rehearsal: Rehearsal) -> None:
    """Its gang has to wait for them, or for Slurm: it cannot be requeued while a dead node of it is not down."""

    def drained_meanwhile(name: str) -> None:
        if name == "drain_node":
            rehearsal.fake.drain_by("alice", "n3", "I am looking at it")

    rehearsal.line.after = drained_meanwhile
    rehearsal.kill_node("n3")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n3"])
    rehearsal.run(200)
    node = next(node for node in rehearsal.fake.nodes() if node.name == "n3")
    assert (node.reason, node.reason_user, node.down) == ("I am looking at it", "alice", False)
    assert rehearsal.line.effects["down_nodes n3"] == rehearsal.line.effects["requeue_job 1"] == 0

    rehearsal.run_until(rehearsal.ended, 200)  # Slurm's own timeout requeues the job, and its seats are still held
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.line.effects["down_nodes n3"] == rehearsal.line.effects["requeue_job 1"] == 0


def test_a_gang_that_runs_stays_while_its_partition_is_down_and_moves_once_it_is_up(rehearsal: Rehearsal) -> None:
    rehearsal.fake.partitions_down.add("train")
    rehearsal.run(12)  # until the states of partitions are read again
    rehearsal.fail("n3")
    rehearsal.run(20)
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED
    assert rehearsal.gang_state() == ("RUNNING", 0)
    rehearsal.fake.partitions_down.clear()
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_faulty_node_that_an_administrator_sets_to_fail_stays_so_and_its_gang_moves(rehearsal: Rehearsal) -> None:
    def show() -> tuple[frozenset[str], str]:
        return next((node.flags, node.reason) for node in rehearsal.fake.nodes() if node.name == "n3")

    rehearsal.fake.fail_by("alice", "n3", "Action:Replace")
    rehearsal.run(2)
    assert rehearsal.state_of("n3") is NodeState.FOREIGN_DRAIN
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert show() == (frozenset({"FAIL"}), "Action:Replace")
    assert rehearsal.line.effects["drain_node n3"] == 0


def test_a_dead_node_that_stays_an_administrators_ends_the_recovery_with_the_reason(tmp_path: Path) -> None:
    rehearsal = Rehearsal(
        tmp_path, recovery={"first_step_timeout_seconds": 100}, hang={"seconds_min": 60, "first_step_seconds": 100}
    )

    def drained_meanwhile(name: str) -> None:
        if name == "drain_node":
            rehearsal.fake.drain_by("alice", "n3", "I am looking at it")

    rehearsal.line.after = drained_meanwhile
    rehearsal.kill_node("n3")
    rehearsal.run_until(rehearsal.ended, 150)
    (recovery, *_) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.FAILED
    assert "drained by alice (I am looking at it)" in recovery.outcome
    assert "understudy_seats_1" not in rehearsal.reservation_names()


@pytest.mark.parametrize(
    "effect", first(2, "drain_node", "requeue_job", "create_reservation", "set_job_reservation", "start_job")
)
def test_a_slurmctld_that_crashes_and_loses_changes_gets_them_again(rehearsal: Rehearsal, effect: str) -> None:
    """It comes back with a state from before the fault; the gang's processes live."""
    saved = rehearsal.fake.saved_state()
    crashed: list[str] = []

    def crash(name: str) -> None:
        if name == effect and not crashed:
            crashed.append(name)
            rehearsal.fake.crash(saved)

    rehearsal.line.after = crash
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: crashed)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1) and rehearsal.ended(), 300)
    assert set(rehearsal.gang_nodes()) in ({"n1", "n2", "n4", "n6"}, {"n1", "n2", "n4", "n5"})
    assert rehearsal.recoveries()[-1].status is RecoveryStatus.SUCCEEDED
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED
    assert next(node for node in rehearsal.fake.nodes() if node.name == "n3").draining
    assert not any("|50|" in key for key in rehearsal.decisions()), "no administrator resumed it"
    rehearsal.run(5)
    assert rehearsal.reservation_names() == {"understudy_spares"}


@pytest.mark.parametrize("down_seconds", first(1, 300.0, 0.0, 30.0))
def test_a_drain_forgotten_in_a_crash_is_made_again_however_long_slurmctld_was_away(
    rehearsal: Rehearsal, down_seconds: float
) -> None:
    saved = rehearsal.fake.saved_state()
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state()[1] == 1)
    rehearsal.fake.now += down_seconds
    rehearsal.fake.crash(saved)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1) and rehearsal.ended(), 300)
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED
    assert next(node for node in rehearsal.fake.nodes() if node.name == "n3").draining
    assert not any("|50|" in key for key in rehearsal.decisions()), "no administrator resumed it"


def test_a_drain_that_stood_through_a_restart_is_a_persons_to_lift(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n3"])
    rehearsal.fake.crash(rehearsal.fake.saved_state())  # forgets nothing
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(60)
    rehearsal.fake.resume_node("n3")
    rehearsal.run(5)
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    assert rehearsal.line.effects["drain_node n3"] == 1


def test_a_person_may_lift_a_drain_that_was_made_just_after_a_restart(rehearsal: Rehearsal) -> None:
    """The restart cannot have lost it: Slurm has shown it since."""
    rehearsal.fake.crash(rehearsal.fake.saved_state())
    rehearsal.run(0.6)
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n5"])
    rehearsal.run(1.5)
    rehearsal.fake.resume_node("n5")
    rehearsal.run(5)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert rehearsal.line.effects["drain_node n5"] == 1


def test_a_person_who_lifts_it_while_no_control_plane_runs_is_believed_then_too(rehearsal: Rehearsal) -> None:
    """How close drain and crash were does not matter: which slurmctld showed the drain is recorded."""
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.line.effects["drain_node n5"])
    rehearsal.fake.crash(rehearsal.fake.saved_state())
    rehearsal.run(3)
    rehearsal.fake.resume_node("n5")
    rehearsal.restart_control_plane()
    rehearsal.run(5)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert rehearsal.line.effects["drain_node n5"] == 1


def test_checkpoints_are_found_again_after_a_crash_that_forgot_a_requeue(rehearsal: Rehearsal) -> None:
    def key() -> JobKey:
        return rehearsal.control_plane.stores.fleet.known_jobs(b.CLUSTER, [rehearsal.gang])[rehearsal.gang].key

    rehearsal.fake.cancel(rehearsal.hungry)
    first = key()
    for count in (1, 2):
        saved = rehearsal.fake.saved_state()
        rehearsal.fake.requeue_job(rehearsal.gang)
        rehearsal.run(2)
        rehearsal.fake.start_job(rehearsal.gang)
        rehearsal.run_until(lambda count=count: rehearsal.gang_state() == ("RUNNING", count))  # type: ignore[misc]
        rehearsal.run(3)
    rehearsal.fake.crash(saved)
    rehearsal.run(3)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert key() == first


def test_a_node_that_another_user_reserved_is_no_spare_even_in_the_pool(rehearsal: Rehearsal) -> None:
    rehearsal.fake.create_reservation("bobs", ["n6"], "bob", 600)
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n5"], "which has joined the pool in its place"


def test_a_gang_is_not_seated_into_the_time_of_a_foreign_reservation(rehearsal: Rehearsal) -> None:
    rehearsal.fake.create_reservation("bobs", ["n1"], "bob", 600)
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.recoveries() == []
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


def test_a_job_gets_the_reservation_back_that_it_ran_in(rehearsal: Rehearsal) -> None:
    rehearsal.fake.create_reservation("team_a", ["n1", "n2", "n3", "n4", "n5"], "researcher", 6000)
    rehearsal.fake.set_job_reservation(rehearsal.gang, "team_a")
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    job = next(job for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    assert (job.state, job.restart_count, job.reservation) == ("RUNNING", 1, "team_a")
    assert "understudy_seats_1" not in rehearsal.reservation_names()


@pytest.mark.parametrize("state", first(2, "RUNNING", "CONFIGURING", "SUSPENDED", "STAGE_OUT"))
def test_a_dead_node_with_a_job_that_is_not_managed_on_it_is_not_declared_down(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    real = rehearsal.fake.jobs

    def with_another() -> list[SlurmJob]:
        jobs = real()
        gang = next(job for job in jobs if job.job_id == rehearsal.gang)
        other = replace(gang, job_id=999, user="student", user_id=4242, comment="", state=state, nodes=("n3",))
        return [*jobs, other]

    monkeypatch.setattr(rehearsal.fake, "jobs", with_another)
    rehearsal.kill_node("n3")
    rehearsal.run(40)
    assert rehearsal.line.effects["down_nodes n3"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"part_of": HETEROGENEOUS_JOB}, "belongs to a heterogeneous job, which Slurm requeues as a whole"),
        ({"required_nodes": ("n3",)}, "asked for n3 by name"),
    ],
)
def test_a_gang_that_slurm_would_not_seat_alone_or_elsewhere_is_left_to_a_person(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    real = rehearsal.fake.jobs
    monkeypatch.setattr(
        rehearsal.fake,
        "jobs",
        lambda: [replace(job, **changes) if job.job_id == rehearsal.gang else job for job in real()],
    )
    rehearsal.fail("n3")
    rehearsal.run(10)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.recoveries() == []
    assert [*rehearsal.line.effects] == ["drain_node n3"]
    (decision,) = [one for one in Queries(rehearsal.engine).decisions(50) if one["table_row"] == 10]
    assert words in decision["reason"]


def test_a_dead_node_of_a_heterogeneous_job_is_left_to_slurm(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down would requeue the component on it, and Slurm requeues them together only."""
    real = rehearsal.fake.jobs
    monkeypatch.setattr(rehearsal.fake, "jobs", lambda: [replace(job, part_of=HETEROGENEOUS_JOB) for job in real()])
    rehearsal.kill_node("n3")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert [*rehearsal.line.effects] == ["drain_node n3"]


@pytest.mark.parametrize("last", [False, True], ids=["first task", "last task, whose job id is the array's"])
def test_a_task_of_an_array_moves_alone(rehearsal: Rehearsal, last: bool) -> None:
    for number in (rehearsal.gang, rehearsal.hungry):
        rehearsal.fake.cancel(number)
    rehearsal.run(2)
    array = rehearsal.fake.submit_array(rehearsal.gang_user, 2, 2, "understudy")
    rehearsal.run(2)
    rehearsal.line.effects.clear()
    rehearsal.gang, other = (array, array + 1) if last else (array + 1, array)
    task = ArrayTask(array, 2 if last else 1)
    left = rehearsal.gang_nodes()[0]
    rehearsal.fail(left)
    rehearsal.run_until(rehearsal.ended)
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.SUCCEEDED
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert left not in rehearsal.gang_nodes()
    (alone,) = [job for job in rehearsal.fake.jobs() if job.job_id == other]
    assert (alone.state, alone.restart_count, alone.reservation) == ("RUNNING", 0, "")
    assert {name.partition(" ")[2] for name in rehearsal.line.effects if "_job" in name} == {str(task)}


def test_a_task_whose_turn_another_one_has_taken_keeps_no_seats_and_no_spare(rehearsal: Rehearsal) -> None:
    for number in (rehearsal.gang, rehearsal.hungry):
        rehearsal.fake.cancel(number)
    rehearsal.run(2)
    array = rehearsal.fake.submit_array(rehearsal.gang_user, 2, 2, "understudy", at_once=1)
    rehearsal.run(2)
    rehearsal.gang, other = array, array + 1
    left = rehearsal.gang_nodes()[0]
    rehearsal.line.before = refuse("start_job")
    rehearsal.fail(left)
    rehearsal.run_until(rehearsal.ended)
    assert places(rehearsal)[other][0] == "RUNNING"
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.OVERTAKEN
    assert "another task of its array runs in its turn" in recovery.outcome
    assert rehearsal.state_of(left) is NodeState.QUARANTINED
    rehearsal.run(5)
    assert rehearsal.reservation_names() == {"understudy_spares"}
    assert len(rehearsal.pool()) == 3
    rehearsal.fake.cancel(other)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 200)
    assert left not in rehearsal.gang_nodes()


@pytest.fixture
def shared(rehearsal: Rehearsal) -> Rehearsal:
    """Two gangs share n1 to n4; the first is the rehearsal's."""
    for number in (rehearsal.gang, rehearsal.hungry):
        rehearsal.fake.cancel(number)
    rehearsal.run(2)
    rehearsal.gang, other = (
        rehearsal.fake.submit(user, 4, comment="understudy") for user in (rehearsal.gang_user, "student")
    )
    for number in (rehearsal.gang, other):
        rehearsal.fake.halve(number)
    rehearsal.run(3)
    assert places(rehearsal) == dict.fromkeys((rehearsal.gang, other), ("RUNNING", 0, ("n1", "n2", "n3", "n4")))
    rehearsal.line.effects.clear()
    return rehearsal


def places(rehearsal: Rehearsal) -> dict[int, tuple[str, int, tuple[str, ...]]]:
    """Job → state, restarts, nodes."""
    jobs = (job for job in rehearsal.fake.jobs() if not job.ended)
    return {job.job_id: (job.state, job.restart_count, tuple(sorted(job.nodes))) for job in jobs}


@pytest.mark.parametrize("kill", [False, True])
def test_two_gangs_on_one_node_each_get_a_spare(shared: Rehearsal, kill: bool) -> None:
    """Down ends both at once: each has its seats before."""
    bound_before_down: list[bool] = []

    def look(name: str) -> None:
        if name == "down_nodes":
            bound_before_down.append(all(job.reservation for job in shared.fake.jobs() if not job.ended))

    shared.line.before = look
    shared.kill_node("n3") if kill else shared.fail("n3")
    shared.run_until(lambda: len(shared.recoveries()) == 2 and shared.ended(), 60)
    assert {one.status for one in shared.recoveries()} == {RecoveryStatus.SUCCEEDED}
    moved = places(shared).values()
    assert {(state, restarts) for state, restarts, _ in moved} == {("RUNNING", 1)}
    assert {nodes for _, _, nodes in moved} == {("n1", "n2", "n4", "n6"), ("n1", "n2", "n4", "n7")}
    assert bound_before_down == [True] * kill


def test_a_gang_that_cannot_move_keeps_the_other_on_its_dead_node_waiting_for_seconds_only(
    shared: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shared.fake.jobs

    def insisting() -> list[SlurmJob]:
        return [job if job.job_id == shared.gang else replace(job, required_nodes=("n3",)) for job in real()]

    monkeypatch.setattr(shared.fake, "jobs", insisting)
    shared.kill_node("n3")
    shared.run_until(shared.ended, 60)
    assert places(shared)[shared.gang] == ("RUNNING", 1, ("n1", "n2", "n4", "n6"))


def test_an_operator_moves_one_of_two_gangs_and_the_other_stays(shared: Rehearsal) -> None:
    entry = AuditEntry.on_host("alice", shared.clock.now(), "move-job", f"job {shared.gang}", "new cables")
    snapshot = shared.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    (key,) = [key for key in snapshot.jobs if key.job_id == shared.gang]
    detail = {"off": ["n3"], "at_checkpoint": False, "submit_at": key.submit_at}
    shared.control_plane.stores.requests.ask_audited(entry, None, detail)
    shared.run_until(shared.ended, 60)
    (other,) = places(shared).keys() - {shared.gang}
    assert places(shared) == {
        shared.gang: ("RUNNING", 1, ("n1", "n2", "n4", "n6")),
        other: ("RUNNING", 0, ("n1", "n2", "n3", "n4")),
    }


def test_seats_deleted_before_the_job_is_bound_to_them_are_held_again(rehearsal: Rehearsal) -> None:
    deleted: list[str] = []

    def delete(name: str) -> None:
        if name == "create_reservation" and not deleted:
            deleted.append("seats")
            rehearsal.fake.delete_reservation("understudy_seats_1")

    rehearsal.line.after = delete
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert deleted
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_pool_deleted_by_hand_in_the_middle_changes_nothing_for_the_gang(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: "understudy_seats_1" in rehearsal.reservation_names())
    rehearsal.fake.delete_reservation("understudy_spares")
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]


def test_a_second_failure_later_is_a_recovery_of_its_own(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(30)
    rehearsal.fail("n1")
    rehearsal.run_until(lambda: len(rehearsal.recoveries()) == 2 and rehearsal.ended())
    assert_gang_is_back(rehearsal, ["n2", "n4", "n5", "n6"], restarts=2)  # n5 had joined the pool


def test_without_a_spare_the_gang_stays_and_moves_when_there_is_one(rehearsal: Rehearsal) -> None:
    for spare in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_node(spare, "maintenance")
    rehearsal.run(2)
    rehearsal.fail("n3")
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED
    rehearsal.fake.resume_node("n7")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n7"])


def test_a_node_that_a_person_resumes_is_trusted_again_and_its_old_fault_forgotten(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.fake.resume_node("n3")
    rehearsal.run(20)
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    assert rehearsal.line.effects["drain_node n3"] == 1
    assert rehearsal.control_plane.stores.incidents.open_incidents() == {}


def test_every_step_of_a_plan_is_done_in_order_and_timed(rehearsal: Rehearsal) -> None:
    rehearsal.kill_node("n3")
    rehearsal.run_until(rehearsal.ended)
    (recovery,) = rehearsal.recoveries()
    times = [step.done_at for step in recovery.steps]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert recovery.steps[0].name is StepName.DRAIN_NODES


def test_a_failed_node_that_dies_before_the_requeue_is_declared_down_instead(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.line.before = lambda name: rehearsal.kill_node("n3") if name == "set_job_reservation" else None
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.line.effects["requeue_job 1"] == 0
    assert rehearsal.line.effects["down_nodes n3"] == 1


@pytest.mark.parametrize("resumes", [True, False])
def test_a_dead_node_of_an_administrator_that_answers_again_before_the_requeue_is_not_declared_down(
    rehearsal: Rehearsal, resumes: bool
) -> None:
    rehearsal.fake.drain_by("alice", "n3", "new cable")
    rehearsal.run(3)

    def answers_again(name: str) -> None:
        if name == "set_job_reservation" and rehearsal.silent:
            rehearsal.fake.start_node("n3")
            rehearsal.silent.discard("n3")
            if resumes:
                rehearsal.fake.resume_node("n3")

    rehearsal.line.before = answers_again
    rehearsal.kill_node("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.line.effects["down_nodes n3"] == 0
    assert rehearsal.line.effects["requeue_job 1"] == 1


def test_a_gang_moves_on_for_another_node_where_a_dead_one_answers_again_and_is_released(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("set_job_reservation")
    rehearsal.fail("n2")
    rehearsal.kill_node("n3")
    rehearsal.run(12)
    rehearsal.fake.start_node("n3")
    rehearsal.silent.discard("n3")
    rehearsal.control_plane.stores.requests.ask(Verb.RELEASE, "n3", "new cable", "alice", rehearsal.fake.now)
    rehearsal.run(3)
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    rehearsal.line.before = lambda _name: None
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert "n2" not in rehearsal.gang_nodes()
    assert rehearsal.line.effects["down_nodes n3"] == 0
    assert rehearsal.line.effects["requeue_job 1"] == 1


def test_where_slurmds_cannot_be_asked_slurms_word_counts_for_whether_a_dead_node_still_does_not_answer(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path, slurmds_answer=False)
    rehearsal.fake.drain_by("alice", "n3", "new cable")
    rehearsal.run(3)
    resumed: list[str] = []

    def resume(name: str) -> None:
        if name == "set_job_reservation" and not resumed:
            resumed.append(name)
            rehearsal.fake.resume_node("n3")

    rehearsal.line.before = resume
    rehearsal.kill_node("n3")
    rehearsal.run_until(rehearsal.ended, 240)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])
    assert rehearsal.line.effects["down_nodes n3"] == 1
    assert rehearsal.line.effects["requeue_job 1"] == 0


def test_a_healthy_node_that_dies_before_the_requeue_is_waited_for_and_replaced(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.line.before = lambda name: rehearsal.kill_node("n1") if name == "set_job_reservation" else None
    rehearsal.run_until(lambda: rehearsal.ended() and len(rehearsal.recoveries()) == 2)
    assert_gang_is_back(rehearsal, ["n2", "n4", "n5", "n6"])  # n5 had joined the pool
    assert rehearsal.line.effects["requeue_job 1"] == 0


def test_a_foreign_reservation_of_the_same_name_is_neither_changed_nor_deleted(rehearsal: Rehearsal) -> None:
    rehearsal.fake.create_reservation("understudy_seats_1", ["n5"], "alice", 60)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    foreign = next(one for one in rehearsal.fake.reservations() if one.name == "understudy_seats_1")
    assert (foreign.users, foreign.nodes) == (("alice",), ("n5",))
    assert rehearsal.recoveries()[0].status is RecoveryStatus.FAILED
    assert rehearsal.gang_state() == ("RUNNING", 0)


def test_a_refused_drain_is_tried_again(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = refuse("drain_node")
    rehearsal.fail("n5")
    rehearsal.run(200)
    rehearsal.line.before = lambda _name: None
    rehearsal.run(10)
    assert rehearsal.line.effects["drain_node n5"] == 1


def test_a_fault_in_a_storm_of_application_errors_is_seen(rehearsal: Rehearsal) -> None:
    for _ in range(300):
        rehearsal.fake.now += 0.1
        rehearsal.fail("n2", xid=31)
    rehearsal.run(1)
    before = len(rehearsal.decisions())
    rehearsal.run(10)
    assert len(rehearsal.decisions()) == before  # recorded once, not three hundred times
    rehearsal.fail("n2", xid=79)
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n3", "n4", "n6"])


def test_in_mode_observe_a_recovery_begun_before_stays_where_it_is(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: "understudy_seats_1" in rehearsal.reservation_names())
    rehearsal.restart_control_plane(mode="observe")
    rehearsal.line.effects.clear()
    rehearsal.run(60)
    assert not rehearsal.line.effects
    rehearsal.restart_control_plane(mode="act")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_management_network_that_is_away_for_eight_seconds_ends_no_job(tmp_path: Path) -> None:
    """The gang has neither hook nor launcher that could confirm that its node is dead."""
    rehearsal = Rehearsal(tmp_path, silence={"dead_unconfirmed_seconds": None})
    rehearsal.silent.add("n3")
    rehearsal.run(8)
    assert rehearsal.state_of("n3") is NodeState.UNKNOWN
    rehearsal.silent.discard("n3")
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.recoveries() == []
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    rehearsal.kill_node("n3")
    rehearsal.run_until(rehearsal.ended, SLURMD_TIMEOUT_SECONDS - 10)  # by then Slurm has missed it twice
    assert_gang_is_back(rehearsal, ["n1", "n2", "n4", "n6"])


def test_a_person_is_notified_once_of_what_a_guard_holds_back_for_long(tmp_path: Path) -> None:
    guards = {"quarantined_nodes_max": 0, "page_after_seconds": 10}
    rehearsal = Rehearsal(tmp_path, guards=guards)
    rehearsal.fail("n8")
    rehearsal.run(8)
    assert rehearsal.tickets == []
    rehearsal.run(60)
    (ticket,) = rehearsal.tickets
    assert (ticket["about"], ticket["node"]) == (["n8"], "n8")
    assert "0 nodes are quarantined already; the limit is 0" in ticket["reason"]
    (stored,) = rehearsal.control_plane.stores.tickets.tickets(10)
    assert stored["closed_at"] is not None, "nothing is waited for"


def without_a_pool(tmp_path: Path) -> Rehearsal:
    """The waiting job is gone, so that n5 to n8 are idle."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fake.cancel_job(rehearsal.hungry)
    rehearsal.fake.delete_reservation("understudy_spares")
    rehearsal.set_config(spares={"count": 0})
    rehearsal.run(1)
    return rehearsal


def test_without_a_pool_the_gang_gets_an_idle_node(tmp_path: Path) -> None:
    rehearsal = without_a_pool(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n4", "n5"])
    assert rehearsal.reservation_names() == set()


def test_an_idle_node_that_slurm_gives_to_another_job_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    """The gang stays until the seats are surely its own, and gets another node."""
    rehearsal = without_a_pool(tmp_path)

    def taken(name: str) -> None:
        if name == "create_reservation" and not other:
            other.append(rehearsal.fake.submit("student", 1))
            rehearsal.fake.advance(1.0)

    other: list[int] = []
    rehearsal.line.before = taken
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: len(rehearsal.recoveries()) == 2 and rehearsal.ended())
    assert "taken meanwhile: n5 by job" in rehearsal.recoveries()[0].outcome
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n4", "n6"])


def test_a_gang_leaves_a_broken_node_also_where_a_budget_keeps_the_node_in_service(tmp_path: Path) -> None:
    """The node is idle then, and the job must not start there again."""
    rehearsal = Rehearsal(tmp_path, guards={"quarantined_nodes_max": 0})
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n4", "n6"])
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    assert not [effect for effect in rehearsal.line.effects if effect.startswith(("drain_node", "down_nodes"))]
    (job,) = (job for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    assert job.excluded_nodes == ("n3",)
    rehearsal.run(30)
    assert len(rehearsal.recoveries()) == 1


def test_an_incident_about_which_nothing_was_done_ends_with_its_fault(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, guards={"quarantined_nodes_max": 0})
    rehearsal.fail("n3")
    rehearsal.run(2)
    assert set(rehearsal.control_plane.stores.incidents.open_incidents()) == {Subject.of_node("n3")}
    rehearsal.booted_again.add("n3")
    rehearsal.run(2)
    assert rehearsal.control_plane.stores.incidents.open_incidents() == {}


def test_a_control_plane_pointed_at_another_cluster_does_nothing_and_reports_it(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.restart_control_plane(cluster="elsewhere")
    rehearsal.line.effects.clear()
    rehearsal.control_plane.loop.tick()
    assert "ClusterName is 'testbed'" in rehearsal.control_plane.loop.pulse.slurm.error
    assert not rehearsal.line.effects


def test_a_fault_that_can_wait_drains_its_node_under_the_running_gang(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n2", xid=63)
    rehearsal.run(120)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n3", "n4"]
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED
    assert rehearsal.line.effects["drain_node n2"] == 1
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert_gang_is_back(rehearsal, ["n1", "n4", "n6", "n7"])
