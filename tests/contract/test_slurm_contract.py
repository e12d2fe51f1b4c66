"""What every implementation of the Slurm protocol promises, held against the fake and a real cluster alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial

import pytest

from tests.conftest import Clusters
from tests.contract.slurm_sides import (
    MAIL,
    NODES,
    REAL_SIDE_NAMES,
    REAL_SIDES,
    SLOW_TO_DIE_SECONDS,
    FakeSide,
    RealSide,
    Side,
    job_of,
    node_of,
    pending,
    running,
    start,
    until,
)
from tests.simulator.slurm import MAX_BATCH_REQUEUE
from tests.testbed.cluster import ClusterError
from understudy_controlplane.fleet.custody import PROLOG_ERROR
from understudy_controlplane.fleet.preemption import PreemptType
from understudy_controlplane.fleet.slurm import ARRAY_LIMIT, ArrayTask, JobRequest, Service, SlurmJob, UnitKind
from understudy_controlplane.slurm.parse import slurmctld_clock
from understudy_controlplane.slurm.protocol import SlurmError, slurm_version

EPILOG_SECONDS = 4.0
REASON = "understudy: GPU [0000:1b:00.0] lost, xid=79 (rule 7)"


@pytest.fixture(scope="session")
def real_sides(slurm_clusters: Clusters) -> Iterator[Callable[[str], RealSide]]:
    """A real side by name, made when first asked for."""
    with ExitStack() as stack:

        @cache
        def make(name: str) -> RealSide:
            installation, gateway = REAL_SIDES[name]
            cluster = slurm_clusters.get(installation)
            return RealSide(cluster, stack.enter_context(gateway(cluster)))

        yield make


@pytest.fixture(
    params=["fake", *(pytest.param(*one.values, marks=[pytest.mark.cluster, *one.marks]) for one in REAL_SIDE_NAMES)]
)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    if request.param == "fake":
        yield FakeSide()
        return
    real: RealSide = request.getfixturevalue("real_sides")(request.param)
    real.clear()
    yield real
    real.clear()


def refused(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(SlurmError) as caught:
        call(*arguments)
    return str(caught.value)


def without_effect(call: Callable[..., object], *arguments: object) -> None:
    """Slurm 22.05 reports success, other versions may report an error."""
    with suppress(SlurmError):
        call(*arguments)


def nodes_of(side: Side, reservation: str) -> tuple[str, ...] | None:
    return {found.name: found.nodes for found in side.slurm.reservations()}.get(reservation)


def hold_all_but(side: Side, *free: str) -> None:
    """Leave only `free` to jobs that are bound to no reservation."""
    side.slurm.create_reservation("rest", [node for node in NODES if node not in free], "root", 60)


def test_the_cluster_has_its_name(side: Side) -> None:
    assert side.slurm.cluster_name() == "testbed"


def test_the_configuration_shows_the_clock_of_slurmctld(side: Side) -> None:
    for _ in range(2):
        before = side.now()
        shown = slurmctld_clock(side.slurm.config())
        assert shown is not None
        assert int(before) <= shown <= side.now()
        side.wait(2.5)


def test_a_healthy_node_has_address_partition_and_gpus(side: Side) -> None:
    nodes = side.slurm.nodes()
    assert [node.name for node in nodes] == list(NODES)
    for node in nodes:
        assert (node.base_state, node.service, node.reason) == ("IDLE", Service.USABLE, "")
        assert (node.partitions, node.gres) == (("train",), "gpu:8")
        assert node.address == side.address_of(node.name)
        assert node.port > 0


def test_a_job_has_its_owner_and_its_request(side: Side) -> None:
    before = int(side.now())
    job_id = side.submit("news", 2, comment="team-a understudy, note=x y")
    job = running(side, job_id)
    assert (job.user, job.name, job.partition, job.account) == ("news", "job", "train", "physics")
    assert (job.comment, job.batch, job.requeue) == ("team-a understudy, note=x y", True, True)
    assert (job.restart_count, job.node_count, len(set(job.nodes))) == (0, 2, 2)
    assert (job.reservation, job.reason, job.mail_to) == ("", "", MAIL)
    assert before <= job.submit_at <= side.now()
    assert job.start_at is not None
    assert job.submit_at <= job.start_at <= side.now()
    assert job.eligible_at is not None
    assert job.submit_at <= job.eligible_at <= job.start_at


def test_one_job_is_read_as_all_jobs_show_it_and_an_unknown_one_is_none(side: Side) -> None:
    job_id = side.submit("news", 2, comment="understudy")
    running(side, job_id)
    assert side.slurm.job(job_id) == job_of(side, job_id)
    assert side.slurm.job(job_id + 1000) is None


def test_a_cluster_without_jobs_or_reservations_has_none(side: Side) -> None:
    assert side.slurm.reservations() == []
    assert [job for job in side.slurm.jobs() if job.state in ("PENDING", "RUNNING", "COMPLETING")] == []


def test_a_drained_node_keeps_its_job_takes_no_other_and_says_why(side: Side) -> None:
    hold_all_but(side, "n1")
    job_id = side.submit("news", 1)
    assert running(side, job_id).nodes == ("n1",)
    side.slurm.drain_node("n1", REASON)

    node = node_of(side, "n1")
    assert (node.draining, node.service, node.down) == (True, Service.DRAINING, False)
    assert (node.reason, node.reason_user) == (REASON, "root")
    assert abs(node.reason_at - side.now()) < 5
    assert job_of(side, job_id).state == "RUNNING"

    side.cancel(job_id)
    waiting = side.submit("games", 1)
    side.wait(2.5)
    assert job_of(side, waiting).state == "PENDING"

    side.slurm.resume_node("n1")
    node = node_of(side, "n1")
    assert not node.draining
    assert node.reason in ("", REASON), "24.11 leaves the reason of a drain that was lifted"
    assert running(side, waiting).nodes == ("n1",)


def test_a_node_set_to_fail_counts_as_drained_by_others_until_it_is_resumed(side: Side) -> None:
    """FAIL takes the place of a drain, and a drain that of FAIL."""
    side.slurm.drain_node("n1", REASON)
    side.fail_node("n1", "Action:Replace")
    node = node_of(side, "n1")
    assert (node.draining, node.service, set(node.flags), node.reason) == (
        True,
        Service.DRAINING,
        {"FAIL"},
        "Action:Replace",
    )
    side.slurm.drain_node("n1", REASON)
    assert set(node_of(side, "n1").flags) == {"DRAIN"}
    side.fail_node("n1", "Action:Replace")
    side.slurm.resume_node("n1")
    until(side, lambda: node_of(side, "n1").service is Service.USABLE, "n1 is resumed")


def test_a_node_leaves_service_only_with_a_reason(side: Side) -> None:
    refused(side.slurm.drain_node, "n1", "")
    refused(side.slurm.down_nodes, ["n1"], " ")
    assert node_of(side, "n1").service is Service.USABLE


def test_a_reason_on_several_lines_is_read_back_on_one(side: Side) -> None:
    side.slurm.drain_node("n1", "first\n  second")
    assert node_of(side, "n1").reason == "first second"


def test_a_dead_node_set_down_lets_its_job_go_at_once(side: Side) -> None:
    job_id = side.submit("news", 2)
    dead, alive = running(side, job_id).nodes[1], job_of(side, job_id).nodes[0]
    side.kill_node(dead)
    side.wait(0.5)
    assert job_of(side, job_id).state == "RUNNING", "Slurm takes minutes to notice by itself"

    side.slurm.down_nodes([dead], REASON)
    assert job_of(side, job_id).restart_count == 1
    until(side, lambda: job_of(side, job_id).state == "PENDING", "the job is requeued", timeout_seconds=20)
    assert (node_of(side, dead).down, node_of(side, dead).reason) == (True, REASON)
    assert node_of(side, alive).service is Service.USABLE

    start(side, job_id)
    assert dead not in running(side, job_id).nodes


def test_a_gang_whose_nodes_are_all_dead_is_requeued_whole(side: Side) -> None:
    job_id = side.submit("news", 3)
    before = running(side, job_id)
    side.wait(1.1)
    for name in before.nodes:
        side.kill_node(name)
    side.slurm.keep_batch_host(before.address)
    side.slurm.down_nodes(before.nodes, REASON)
    until(side, lambda: job_of(side, job_id).state == "PENDING", "the job is requeued", timeout_seconds=20)
    assert job_of(side, job_id).restart_count == 1
    assert job_of(side, job_id).submit_at > before.submit_at, "Slurm keeps the job's old record"
    assert all(node_of(side, name).down for name in before.nodes)

    start(side, job_id)
    assert len(running(side, job_id).nodes) == 3


def test_a_reservation_holds_exactly_its_nodes_down_to_the_last(side: Side) -> None:
    side.slurm.create_reservation("pool", ["n8", "n6", "n7"], "root", 60)
    reservation = side.slurm.reservations()[0]
    assert (reservation.name, set(reservation.nodes), reservation.users) == ("pool", {"n6", "n7", "n8"}, ("root",))
    assert "IGNORE_JOBS" in reservation.flags

    side.slurm.set_reservation_nodes("pool", ["n8"])
    assert nodes_of(side, "pool") == ("n8",)
    refused(side.slurm.set_reservation_nodes, "pool", [])
    assert nodes_of(side, "pool") == ("n8",)
    side.slurm.set_reservation_nodes("pool", ["n5", "n8"])
    assert nodes_of(side, "pool") == ("n5", "n8")

    side.slurm.delete_reservation("pool")
    assert side.slurm.reservations() == []


def test_a_reservation_takes_no_name_twice_and_no_unknown_node(side: Side) -> None:
    side.slurm.create_reservation("pool", ["n8"], "root", 60)
    refused(side.slurm.create_reservation, "pool", ["n7"], "root", 60)
    refused(side.slurm.create_reservation, "other", ["n7", "n99"], "root", 60)
    refused(side.slurm.create_reservation, "other", [], "root", 60)
    assert nodes_of(side, "pool") == ("n8",)
    assert nodes_of(side, "other") is None


def test_a_gang_comes_back_on_exactly_the_seats_held_for_it(side: Side) -> None:
    hold_all_but(side, "n1", "n2", "n3")
    gang = side.submit("news", 2)
    bad, good = running(side, gang).nodes
    filler = side.submit("games", 1)
    running(side, filler)
    rivals = [side.submit("games", 1), side.submit("news", 1)]

    side.slurm.drain_node(bad, REASON)
    side.slurm.create_reservation("seats", [good, "n4"], "news", 60)  # n4 is still in the rest
    side.slurm.set_reservation_nodes("rest", ["n5", "n6", "n7", "n8"])
    side.slurm.set_job_reservation(gang, "seats")
    side.slurm.requeue_job(gang)
    assert pending(side, gang).reservation == "seats"
    start(side, gang)

    job = running(side, gang)
    assert set(job.nodes) == {good, "n4"}
    assert job.restart_count == 1
    assert [job_of(side, rival).state for rival in rivals] == ["PENDING", "PENDING"]

    assert "use" in refused(side.slurm.delete_reservation, "seats")
    side.slurm.set_job_reservation(gang, "")
    side.slurm.delete_reservation("seats")
    assert job_of(side, gang).reservation == ""
    assert job_of(side, gang).state == "RUNNING"
    assert nodes_of(side, "seats") is None


def test_a_requeued_job_counts_up_at_once_and_waits_for_its_start_time(side: Side) -> None:
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.requeue_job(job_id)
    assert job_of(side, job_id).restart_count == 1

    job = pending(side, job_id)
    assert (job.restart_count, job.nodes, job.reason) == (1, (), "BeginTime")
    assert job.start_at is not None
    assert 100 < job.start_at - side.now() < 130
    assert job.eligible_at == job.start_at

    without_effect(side.slurm.requeue_job, job_id)  # it is pending
    assert job_of(side, job_id).restart_count == 1
    refused(side.slurm.requeue_failed_job, job_id)
    assert job_of(side, job_id).restart_count == 1
    start(side, job_id)
    assert running(side, job_id).restart_count == 1


def test_a_requeued_job_starts_no_earlier_than_asked_for_in_advance(side: Side) -> None:
    """slurmctld's clock decides: never in the second of its kill, which Slurm would fail."""
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.requeue_job(job_id)
    job = pending(side, job_id)
    side.slurm.start_job(job.address, job.submit_at + 3)
    later = job_of(side, job_id)
    assert (later.state, later.start_at, later.eligible_at) == ("PENDING", job.submit_at + 3, job.submit_at + 3)
    until(side, lambda: side.now() > job.submit_at + 3.05, "it may start")
    with suppress(SlurmError):  # newer versions have started it by then
        side.slurm.start_job(job.address, job.submit_at + 3)
    again = running(side, job_id)
    assert again.restart_count == 1
    assert again.start_at is not None
    assert again.start_at >= job.submit_at + 3


def test_a_start_time_set_while_the_job_is_completing_is_lost(side: Side) -> None:
    job_id = side.submit("news", 1, kill_seconds=SLOW_TO_DIE_SECONDS)
    running(side, job_id)
    side.wait(0.5)  # until its script has set its trap
    side.slurm.requeue_job(job_id)
    assert job_of(side, job_id).state == "COMPLETING"
    without_effect(side.slurm.requeue_job, job_id)
    refused(side.slurm.requeue_failed_job, job_id)
    side.slurm.start_job(job_id)
    job = pending(side, job_id)
    assert job.start_at is not None
    assert job.start_at - side.now() > 100
    assert job.restart_count == 1


@pytest.mark.parametrize(
    ("how", "exit_code", "exit_signal", "reason"),
    [("CANCELLED", 0, 15, ""), ("COMPLETED", 0, 0, ""), ("FAILED", 1, 0, "NonZeroExitCode")],
)
def test_a_job_that_ends_during_a_long_epilog_shows_how_is_not_requeued_and_keeps_no_reservation(
    side: Side, how: str, exit_code: int, exit_signal: int, reason: str
) -> None:
    side.slow_epilog(EPILOG_SECONDS)
    side.slurm.create_reservation("seats", ["n8"], "news", 60)
    job_id = side.submit("news", 2)
    running(side, job_id)
    side.slurm.set_job_reservation(job_id, "seats")
    if how == "CANCELLED":
        side.wait(0.5)  # until its script runs: a job that is cancelled before has no signal that ended it
        side.cancel(job_id)
        without_effect(side.slurm.requeue_job, job_id)  # in the moment of the cancellation
    else:
        side.end(job_id, how)
    until(side, lambda: job_of(side, job_id).completing, "its epilogs run")
    side.wait(1.0)
    job = job_of(side, job_id)
    assert (job.state, job.restart_count) == ("COMPLETING", 0)
    assert (job.exit_code, job.exit_signal, job.reason) == (exit_code, exit_signal, reason)
    assert job.failed_by_itself == (how == "FAILED")
    without_effect(side.slurm.requeue_job, job_id)
    refused(side.slurm.set_job_reservation, job_id, "")
    side.slurm.delete_reservation("seats")
    assert job_of(side, job_id).reservation == ""
    until(side, lambda: job_of(side, job_id).state == how, "its epilogs are over")
    without_effect(side.slurm.requeue_job, job_id)
    assert (job_of(side, job_id).state, job_of(side, job_id).restart_count) == (how, 0)


def test_a_plain_requeue_runs_even_a_cancelled_job_again(side: Side) -> None:
    """Why the caller has to know how the job ended."""
    side.slow_epilog(EPILOG_SECONDS)
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.cancel(job_id)
    until(side, lambda: job_of(side, job_id).completing, "its epilog runs")
    side.slurm.requeue_failed_job(job_id)
    assert job_of(side, job_id).restart_count == 1
    assert pending(side, job_id).restart_count == 1


def test_a_job_cancelled_while_it_completes_for_its_requeue_never_runs_again(side: Side) -> None:
    side.slow_epilog(EPILOG_SECONDS)
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.requeue_job(job_id)
    assert job_of(side, job_id).state == "COMPLETING"
    side.cancel(job_id)
    until(side, lambda: job_of(side, job_id).state == "CANCELLED", "its epilog is over")
    assert job_of(side, job_id).restart_count == 1


def test_a_job_whose_prolog_failed_is_held_until_it_is_released(side: Side) -> None:
    hold_all_but(side, "n1", "n2")
    side.spoil_prolog("n1")
    job_id = side.submit("news", 1)
    until(side, lambda: job_of(side, job_id).held_after_failed_launch, "the job is held")
    job = job_of(side, job_id)
    assert (job.restart_count, job.nodes) == (1, ())
    assert job.start_at is not None
    assert 100 < job.start_at - side.now() < 130
    node = node_of(side, "n1")
    assert (node.draining, node.reason, node.reason_user) == (True, PROLOG_ERROR, "root")
    side.slurm.start_job(job_id)
    side.wait(2.5)
    assert job_of(side, job_id).held_after_failed_launch, "a start time alone releases no job"

    side.slurm.release_job(job_id)
    assert not job_of(side, job_id).held_after_failed_launch
    assert running(side, job_id).nodes == ("n2",), "its start time was set before"


@pytest.mark.long
def test_a_job_of_too_many_failed_launches_is_held_for_their_number(side: Side) -> None:
    hold_all_but(side, "n1")
    side.spoil_prolog("n1")
    job_id = side.submit("news", 1)
    for attempt in range(1, MAX_BATCH_REQUEUE + 1):
        until(side, partial(_is_held_again, side, job_id, attempt), "the job is held")
        if attempt < MAX_BATCH_REQUEUE:
            side.slurm.resume_node("n1")
            side.wait(1.2)  # in the second of its requeue its credential is revoked
            side.slurm.release_job(job_id)
            side.slurm.start_job(job_id)
    job = job_of(side, job_id)
    assert job.held_by_slurm
    if slurm_version(side.slurm.config()) >= (23, 2):
        assert job.reason == "launch_failure_limit_exceeded_requeued_held"
    side.slurm.release_job(job_id)
    assert not job_of(side, job_id).held


def _is_held_again(side: Side, job_id: int, attempt: int) -> bool:
    job = job_of(side, job_id)
    return job.held_after_failed_launch and job.restart_count == attempt


def test_a_job_that_may_not_be_requeued_dies_of_a_failed_prolog(side: Side) -> None:
    hold_all_but(side, "n1", "n2")
    side.spoil_prolog("n1")
    job_id = side.submit("news", 1, requeue=False)
    until(side, lambda: job_of(side, job_id).state == "CANCELLED", "the job is over")
    assert node_of(side, "n1").draining


def test_a_job_that_does_not_allow_it_is_not_requeued(side: Side) -> None:
    job_id = side.submit("news", 1, requeue=False)
    assert not running(side, job_id).requeue
    refused(side.slurm.requeue_job, job_id)
    job = job_of(side, job_id)
    assert (job.state, job.restart_count) == ("RUNNING", 0)


def test_a_job_is_bound_and_unbound_in_any_state_but_the_last(side: Side) -> None:
    side.slurm.create_reservation("seats", ["n3"], "news", 60)
    job_id = side.submit("news", 1)
    running(side, job_id)
    for reservation in ("seats", "seats", "", ""):
        side.slurm.set_job_reservation(job_id, reservation)
        assert job_of(side, job_id).reservation == reservation
    refused(side.slurm.set_job_reservation, job_id, "nowhere")
    side.cancel(job_id)
    until(side, lambda: job_of(side, job_id).state == "CANCELLED", "the job is over")
    refused(side.slurm.set_job_reservation, job_id, "seats")


def test_of_several_reservations_a_job_is_bound_to_the_first_at_least(side: Side) -> None:
    for name, node in (("early", "n3"), ("late", "n4")):
        side.slurm.create_reservation(name, [node], "news", 60)
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.set_job_reservation(job_id, "early,late")
    assert job_of(side, job_id).reservation.split(",")[0] == "early"
    refused(side.slurm.set_job_reservation, job_id, "early,nowhere")
    side.slurm.set_job_reservation(job_id, "")
    assert job_of(side, job_id).reservation == ""


def test_what_slurm_does_not_know_is_refused_by_name(side: Side) -> None:
    assert "n99" in refused(side.slurm.drain_node, "n99", REASON)
    assert "n99" in refused(side.slurm.down_nodes, ["n99"], REASON)
    assert "n99" in refused(side.slurm.resume_node, "n99")
    assert "nowhere" in refused(side.slurm.set_reservation_nodes, "nowhere", ["n1"])
    assert "nowhere" in refused(side.slurm.delete_reservation, "nowhere")
    assert "4711" in refused(side.slurm.requeue_job, 4711)
    assert "4711" in refused(side.slurm.requeue_failed_job, 4711)
    assert "4711" in refused(side.slurm.start_job, 4711)
    assert "4711" in refused(side.slurm.set_job_reservation, 4711, "")
    assert "n99" in refused(side.slurm.reboot_node, "n99", REASON)
    assert "n99" in refused(side.slurm.set_weight, "n99", 2)
    assert "4711" in refused(side.slurm.hold_job, 4711)
    assert "4711" in refused(side.slurm.release_job, 4711)
    assert "4711" in refused(side.slurm.set_job_priority, 4711, 1)
    assert "4711" in refused(side.slurm.set_time_limit, 4711, 1)
    assert "4711" in refused(side.slurm.set_job_comment, 4711, "")
    assert "4711" in refused(side.slurm.set_excluded_nodes, 4711, [])
    assert "4711" in refused(side.slurm.steps, 4711)


def test_the_configuration_is_read_as_slurm_prints_it(side: Side) -> None:
    config = side.slurm.config()
    assert config["ClusterName"] == "testbed"
    assert config["SLURM_VERSION"].count(".") == 2
    assert (config["SlurmdTimeout"], config["JobRequeue"]) == ("300 sec", "1")


def test_nodes_have_their_switch(side: Side) -> None:
    assert {(unit.kind, unit.level, unit.name): unit.nodes for unit in side.slurm.topology()} == {
        (UnitKind.SWITCH, 0, "rack1"): NODES[:4],
        (UnitKind.SWITCH, 0, "rack2"): NODES[4:],
        (UnitKind.SWITCH, 1, "spine"): NODES,
    }


def test_the_steps_of_a_job_are_listed_while_they_run(side: Side) -> None:
    job_id = side.submit("news", 2)
    job = running(side, job_id)
    until(side, lambda: bool(side.slurm.steps(job_id)), "the batch step runs")
    (step,) = side.slurm.steps(job_id)
    assert (step.step_id, step.name, step.state, step.nodes) == ("batch", "batch", "RUNNING", job.nodes[:1])
    hold_all_but(side, *job.nodes)
    waiting = side.submit("games", 1)
    assert side.slurm.steps(waiting) == []


def test_a_held_job_waits_until_it_is_released(side: Side) -> None:
    hold_all_but(side, "n1")
    first = side.submit("news", 1)
    running(side, first)
    job_id = side.submit("games", 1)
    side.slurm.hold_job(job_id)
    job = job_of(side, job_id)
    assert (job.state, job.held, job.priority, job.reason) == ("PENDING", True, 0, "JobHeldAdmin")
    side.cancel(first)
    side.wait(2.5)
    assert job_of(side, job_id).state == "PENDING"
    side.slurm.release_job(job_id)
    assert not job_of(side, job_id).held
    assert running(side, job_id).nodes == ("n1",)


def test_a_job_starts_on_no_node_that_it_excludes(side: Side) -> None:
    hold_all_but(side, "n1", "n2")
    first = side.submit("news", 2)
    running(side, first)
    job_id = side.submit("games", 1)
    side.slurm.set_excluded_nodes(job_id, ["n3", "n1", "n4"])
    assert set(job_of(side, job_id).excluded_nodes) == {"n1", "n3", "n4"}  # in whatever order Slurm keeps them
    side.cancel(first)
    assert running(side, job_id).nodes == ("n2",)
    other = side.submit("games", 2)
    side.slurm.set_excluded_nodes(other, ["n1"])
    side.slurm.set_excluded_nodes(other, [])
    assert job_of(side, other).excluded_nodes == ()


def test_of_two_waiting_jobs_the_one_with_priority_starts_first(side: Side) -> None:
    hold_all_but(side, "n1")
    first = side.submit("news", 1)
    running(side, first)
    early, late = side.submit("games", 1), side.submit("games", 1)
    wanted = job_of(side, early).priority + 1000
    side.slurm.set_job_priority(late, wanted)
    assert job_of(side, late).priority == wanted
    side.cancel(first)
    running(side, late)
    assert job_of(side, early).state == "PENDING"


def test_when_a_job_was_suspended_or_resumed_last_is_shown_until_its_requeue(side: Side) -> None:
    job_id = side.submit("news", 1)
    assert running(side, job_id).suspended_or_resumed_at is None
    side.slurm.set_time_limit(job_id, 90)

    before = int(side.now())
    side.suspend(job_id)
    job = job_of(side, job_id)
    assert (job.suspended, len(job.nodes)) == (True, 1)
    assert before <= (job.suspended_or_resumed_at or 0) <= side.now()

    side.wait(1.1)
    resumed = int(side.now())
    side.resume(job_id)
    job = running(side, job_id)
    assert job.suspended_or_resumed_at in range(resumed, int(side.now()) + 1)
    later = (job.end_at or 0) - (job.start_at or 0) - 90 * 60
    assert 1 <= later <= side.now() - before + 1, "a suspension does not count against the time limit"

    side.slurm.requeue_job(job_id)
    assert pending(side, job_id).suspended_or_resumed_at is None


def test_a_job_that_was_made_smaller_while_it_was_suspended_asks_for_all_its_nodes_once_it_is_requeued(
    side: Side,
) -> None:
    job_id = side.submit("news", 3)
    first, *_ = running(side, job_id).nodes
    side.suspend(job_id)
    side.shrink(job_id, 2)
    smaller = job_of(side, job_id)
    assert (smaller.suspended, len(smaller.nodes), smaller.node_count) == (True, 2, 2)
    assert smaller.nodes[0] == first, "its batch host stays"
    side.resume(job_id)
    assert running(side, job_id).nodes == smaller.nodes
    side.slurm.requeue_job(job_id)
    assert pending(side, job_id).nodes == ()  # Slurm 22.05 still shows two as the number that it asks for
    side.slurm.start_job(job_id, int(side.now()))
    assert len(running(side, job_id).nodes) == 3


def test_a_running_job_is_given_more_time(side: Side) -> None:
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.set_time_limit(job_id, 90)
    job = job_of(side, job_id)
    assert job.time_limit_minutes == 90
    assert (job.end_at or 0) - (job.start_at or 0) == 90 * 60
    side.slurm.set_time_limit(job_id, 3 * 24 * 60)
    assert job_of(side, job_id).time_limit_minutes == 3 * 24 * 60


def test_a_jobs_comment_is_rewritten_and_read_back(side: Side) -> None:
    job_id = side.submit("news", 1, comment="understudy")
    for comment in ("understudy, swaps=2 x", ""):
        side.slurm.set_job_comment(job_id, comment)
        assert job_of(side, job_id).comment == comment


def test_a_jobs_extra_is_written_where_slurm_has_one(side: Side) -> None:
    job_id = side.submit("news", 1, comment="understudy")
    if slurm_version(side.slurm.config()) < (23, 2):
        refused(side.slurm.set_job_extra, job_id, "swaps=2")
        assert side.slurm.job_extra(job_id) == ""
    else:
        side.slurm.set_job_extra(job_id, "swaps=2 x")
        assert (side.slurm.job_extra(job_id), job_of(side, job_id).comment) == ("swaps=2 x", "understudy")


def test_a_node_reboots_once_it_is_empty_and_stays_down_for_a_look(side: Side) -> None:
    hold_all_but(side, "n1")
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.reboot_node("n1", REASON)
    until(side, lambda: node_of(side, "n1").service is Service.AWAY, "the reboot is requested")
    assert node_of(side, "n1").draining
    assert node_of(side, "n1").reason.startswith(REASON)
    assert job_of(side, job_id).state == "RUNNING"

    side.cancel(job_id)
    until(side, lambda: "REBOOT_ISSUED" in node_of(side, "n1").flags, "the empty node is rebooted")
    side.finish_reboot("n1")
    until(side, lambda: node_of(side, "n1").service is not Service.AWAY, "it is back")
    node = node_of(side, "n1")
    assert node.down
    assert node.service is not Service.USABLE
    assert node.reason.startswith(REASON)
    assert "reboot" in node.reason
    side.slurm.resume_node("n1")
    until(side, lambda: node_of(side, "n1").service is Service.USABLE, "a person resumes it", timeout_seconds=150)


@pytest.mark.parametrize("heavy", ["n1", "n2"])
def test_of_two_free_nodes_a_job_gets_the_one_of_less_weight(side: Side, heavy: str) -> None:
    hold_all_but(side, "n1", "n2")
    light = "n2" if heavy == "n1" else "n1"
    side.slurm.set_weight(heavy, 1000)
    assert (node_of(side, heavy).weight, node_of(side, light).weight) == (1000, 1)
    side.slurm.set_weight(light, 0)
    assert node_of(side, light).weight == 0
    assert running(side, side.submit("news", 1)).nodes == (light,)
    assert running(side, side.submit("news", 1)).nodes == (heavy,), "last, and not never"


@pytest.mark.parametrize("side", ["fake", pytest.param("22.05-cli", marks=pytest.mark.cluster)], indirect=True)
def test_a_task_of_an_array_is_changed_alone_by_its_address_and_with_all_others_by_the_arrays_id(side: Side) -> None:
    """The last task has the array's own id. One real version: all others have the same code (job_mgr.c)."""
    array = side.submit_array("news", 3)
    until(side, lambda: sum(job.state == "RUNNING" for job in side.slurm.jobs()) == 3, "all tasks run")
    last = job_of(side, array)
    assert last.address == ArrayTask(array, 3)
    assert side.slurm.job(array) == last
    others = [job.job_id for job in side.slurm.jobs() if job.job_id != array and job.state == "RUNNING"]

    def of_others() -> set[tuple[str, int, str, tuple[str, ...]]]:
        jobs = (job_of(side, number) for number in others)
        return {(job.state, job.restart_count, job.reservation, job.excluded_nodes) for job in jobs}

    untouched = {("RUNNING", 0, "", ())}
    side.slurm.create_reservation("seats", last.nodes, "news", 60)
    side.slurm.set_job_reservation(last.address, "seats")
    assert job_of(side, array).reservation == "seats"
    side.slurm.requeue_job(last.address)
    assert pending(side, array).restart_count == 1
    assert job_of(side, array).address == last.address
    side.slurm.set_excluded_nodes(last.address, ["n8"])
    side.slurm.hold_job(last.address)
    assert job_of(side, array).held
    side.slurm.release_job(last.address)
    start(side, array)
    assert running(side, array).nodes == last.nodes
    assert job_of(side, array).excluded_nodes == ("n8",)
    assert of_others() == untouched
    side.slurm.set_job_reservation(last.address, "")
    side.slurm.set_time_limit(array, 5)
    assert {job_of(side, number).time_limit_minutes for number in (array, *others)} == {5}
    side.slurm.requeue_job(array)
    until(side, lambda: {job_of(side, number).restart_count for number in others} == {1}, "all are requeued")


@pytest.mark.parametrize("side", ["fake", pytest.param("22.05-cli", marks=pytest.mark.cluster)], indirect=True)
def test_of_an_array_with_a_limit_the_next_task_takes_the_turn_of_one_that_is_requeued(side: Side) -> None:
    array = side.submit_array("news", 2, at_once=1)

    def tasks(state: str) -> list[SlurmJob]:
        return [job for job in side.slurm.jobs() if job.array_task is not None and job.state == state]

    until(side, lambda: bool(tasks("RUNNING")), "one task runs")
    (first,) = tasks("RUNNING")
    side.slurm.requeue_job(first.address)
    until(side, lambda: any(one.job_id != first.job_id for one in tasks("RUNNING")), "the other one runs")
    until(side, lambda: job_of(side, first.job_id).reason == ARRAY_LIMIT, "the first one waits for it")
    start(side, first.job_id)
    side.wait(2)
    assert pending(side, first.job_id).reason == ARRAY_LIMIT, "also when it is to start now"
    side.cancel(array)


@pytest.mark.cluster
@pytest.mark.parametrize("name", REAL_SIDE_NAMES)
def test_tasks_of_an_array_and_odd_text_are_read_as_separate_jobs(
    real_sides: Callable[[str], RealSide], name: str
) -> None:
    """What only a real Slurm can show: an array's last task has the array's own id, and text need not be UTF-8."""
    side = real_sides(name)
    side.clear()
    array = side.submit_array("news", 3)
    odd = side.submit_named("news", b"bad\xffname MCS_label=x JobState=RUNNING")
    until(side, lambda: len([job for job in side.slurm.jobs() if job.state == "RUNNING"]) >= 4, "all run")
    jobs = {job.job_id: job for job in side.slurm.jobs() if job.state == "RUNNING"}
    assert {job.address for job in jobs.values()} == {odd, *(ArrayTask(array, task) for task in (1, 2, 3))}
    assert jobs[array].array_task == ArrayTask(array, 3)
    assert {job.part_of for job in jobs.values()} == {""}
    assert jobs[odd].name.startswith("bad")
    side.clear()


@pytest.mark.cluster
@pytest.mark.parametrize("name", REAL_SIDE_NAMES)
def test_what_a_job_asks_for_on_each_node_is_read(real_sides: Callable[[str], RealSide], name: str) -> None:
    side = real_sides(name)
    side.clear()
    node = node_of(side, "n1")
    assert min(node.cpus, node.memory_mb) > 0
    by_node = side.submit_with("--nodes=2", "--mem=500", "--contiguous", "--switches=3@10")
    by_cpu = side.submit_with("--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--mem-per-cpu=10")
    jobs = (running(side, by_node), running(side, by_cpu))
    found = [(one.memory_mb, one.contiguous, one.ranks_max, one.switches_max) for one in jobs]
    assert found[0] == (500, True, 2 * node.cpus, 3)
    all_cpus = (10 * node.cpus, False, node.cpus, 0)
    assert found[1] == all_cpus, "each job of this cluster has its nodes alone, with all their CPUs"
    side.clear()


@pytest.mark.cluster
@pytest.mark.parametrize("name", REAL_SIDE_NAMES)
def test_in_a_mixed_fleet_a_node_suits_a_job_where_slurm_would_start_it(
    real_sides: Callable[[str], RealSide], name: str
) -> None:
    side = real_sides(name)
    side.clear()
    with side.features("h100,nvl", "n7", "n8"), side.features("a100,nvl", *NODES[:6]):
        for asked, suit in (("h100", {"n7", "n8"}), ("nvl", set(NODES)), ("h100&nvl", {"n7", "n8"}), ("", set(NODES))):
            job = running(side, side.submit_with("--nodes=1", *([f"--constraint={asked}"] if asked else [])))
            place = node_of(side, *job.nodes)
            assert {one.name for one in side.slurm.nodes() if not one.why_unfit(job, place)} == suit, asked
        with pytest.raises(ClusterError, match="Requested node configuration is not available"):
            side.submit_with("--nodes=1", "--nodelist=n1", "--constraint=h100")
        side.clear()


@pytest.mark.cluster
# A minute each, and the gateway makes no difference.
@pytest.mark.parametrize("name", ["22.05-cli", pytest.param("26.05-pyslurm", marks=pytest.mark.long)])
def test_seats_that_expire_do_not_hold_their_job_for_good(real_sides: Callable[[str], RealSide], name: str) -> None:
    side = real_sides(name)
    side.clear()
    side.slurm.create_reservation("seats", ["n1"], "news", 60)
    assert "NO_HOLD_JOBS_AFTER_END" in side.slurm.reservations()[0].flags
    job_id = side.submit("news", 1)
    running(side, job_id)
    side.slurm.hold_job(job_id)  # so that it pends when its seats expire
    side.slurm.set_job_reservation(job_id, "seats")
    side.slurm.requeue_job(job_id)
    pending(side, job_id)
    side.slurm.release_job(job_id)
    side.expire_reservation("seats")
    # A minute is the least they last, and Slurm looks for expired ones once a minute.
    until(side, lambda: side.slurm.reservations() == [], "the seats are gone", 150)
    until(side, lambda: not job_of(side, job_id).held, "Slurm lets the job go on", 30)
    side.clear()


def validation_job(node: str, reservation: str = "understudy", seconds: int = 3) -> JobRequest:
    script = f"#!/bin/sh\nsleep {seconds}\n"
    return JobRequest("understudy-x", node, "train", reservation, "root", "gpu:8", script, 5, "/dev/null")


def test_a_job_of_the_control_plane_runs_on_a_node_resumed_in_its_reservation_and_no_other_does(side: Side) -> None:
    side.slurm.drain_node("n1", REASON)
    side.slurm.create_reservation("understudy", ["n1"], "root", 60)
    hold_all_but(side, "n1")
    other = side.submit("news", 1)
    side.slurm.submit_job(validation_job("n1"))
    side.wait(2.5)
    assert own_job(side).state == "PENDING", "a drained node runs no job"
    side.slurm.resume_node("n1")
    until(side, lambda: own_job(side).state in ("RUNNING", "COMPLETED"), "it runs", 30)
    job = own_job(side)
    assert (job.nodes, job.user, job.reservation, job.requeue) == (("n1",), "root", "understudy", False)
    until(side, lambda: own_job(side).state == "COMPLETED", "it has ended well", 30)
    assert job_of(side, other).state == "PENDING"


def test_a_job_of_the_control_plane_is_cancelled_and_its_reservation_deleted(side: Side) -> None:
    side.slurm.create_reservation("understudy", ["n1"], "root", 60)
    side.slurm.submit_job(validation_job("n1", seconds=300))
    until(side, lambda: own_job(side).state == "RUNNING", "it runs", 30)
    refused(side.slurm.delete_reservation, "understudy")
    side.slurm.cancel_job(own_job(side).job_id)
    until(side, lambda: own_job(side).state == "CANCELLED", "it is over")
    side.slurm.cancel_job(own_job(side).job_id)
    side.slurm.delete_reservation("understudy")


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["22.05-cli", "26.05-cli"])
def test_a_job_of_the_control_plane_runs_in_whichever_partition_lets_it(
    real_sides: Callable[[str], RealSide], name: str
) -> None:
    side = real_sides(name)
    side.clear()
    with side.another_partition("short", "MaxTime=1"):
        side.slurm.create_reservation("understudy", ["n1"], "root", 60)
        side.slurm.submit_job(replace(validation_job("n1"), partition="short,train"))
        until(side, lambda: own_job(side).state == "COMPLETED", "it has ended well", 30)
        assert own_job(side).partition == "train"
        side.slurm.submit_job(replace(validation_job("n1"), partition="short"))
        until(side, lambda: own_job(side).reason == "PartitionTimeLimit", "it waits for a partition that lets it")
        assert own_job(side).state == "PENDING"
        side.slurm.cancel_job(own_job(side).job_id)
        until(side, lambda: own_job(side).state == "CANCELLED", "it is over")
        side.slurm.delete_reservation("understudy")


def test_a_job_of_the_control_plane_is_refused_where_it_cannot_be(side: Side) -> None:
    side.slurm.create_reservation("understudy", ["n1"], "root", 60)
    refused(side.slurm.submit_job, validation_job("n99"))
    refused(side.slurm.submit_job, validation_job("n1", reservation="nowhere"))
    side.slurm.cancel_job(4711)


@pytest.mark.parametrize("shares", ["mps:800", "shard:16"])
def test_a_job_that_asks_for_gpus_and_for_shares_of_them_is_refused(side: Side, shares: str) -> None:
    """slurmctld refuses it (gres_job_state_validate in src/interfaces/gres.c), whether or not a node has them. SchedMD
    tests it as well (test_105_3.py).
    """
    side.slurm.create_reservation("understudy", ["n1"], "root", 60)
    words = refused(side.slurm.submit_job, replace(validation_job("n1"), gres=f"gpu:8,{shares}"))
    assert "Invalid generic resource (gres) specification" in words


@pytest.mark.parametrize("in_minutes", [0, 3])
def test_a_job_of_the_control_plane_is_refused_until_an_administrators_maintenance_is_over(
    side: Side, in_minutes: int
) -> None:
    """Also one that would not be over when it begins: it takes five minutes."""
    side.slurm.create_reservation("understudy", ["n1"], "root", 60)
    side.plan_maintenance("n1", in_minutes)
    until(side, lambda: node_of(side, "n1").in_maintenance is (in_minutes == 0), "Slurm shows what has begun")
    (planned,) = [one for one in side.slurm.reservations() if one.is_maintenance]
    assert planned.nodes == ("n1",)
    refused(side.slurm.submit_job, validation_job("n1"))
    side.slurm.delete_reservation("maintenance")
    until(side, lambda: not node_of(side, "n1").in_maintenance, "it is over")
    side.slurm.submit_job(validation_job("n1"))
    until(side, lambda: own_job(side).state == "COMPLETED", "it has ended well", 30)


def test_a_gang_starts_on_seats_that_an_administrator_has_reserved_for_later_than_its_time(side: Side) -> None:
    gang = side.submit("news", 2)
    good, bad = running(side, gang).nodes
    side.slurm.set_time_limit(gang, 30)
    side.plan_maintenance("n4", 60)
    side.slurm.drain_node(bad, REASON)
    side.slurm.create_reservation("seats", [good, "n4"], "news", 60)
    side.slurm.set_job_reservation(gang, "seats")
    side.slurm.requeue_job(gang)
    pending(side, gang)
    start(side, gang)
    assert set(running(side, gang).nodes) == {good, "n4"}


def own_job(side: Side) -> SlurmJob:
    return max((job for job in side.slurm.jobs() if job.name == "understudy-x"), key=lambda job: job.job_id)


def low(side: Side, user: str = "games", requeue: bool = True) -> SlurmJob:
    return running(side, side.submit_low(user, 1, requeue=requeue))


def test_in_a_partition_that_is_down_jobs_run_on_and_none_starts(side: Side) -> None:
    job_id = side.submit("news", 1)
    running(side, job_id)
    assert side.slurm.partition_states() == {"train": "UP"}
    with side.partition_down():
        assert side.slurm.partition_states() == {"train": "DOWN"}
        side.slurm.requeue_job(job_id)
        pending(side, job_id)
        start(side, job_id)
        until(side, lambda: job_of(side, job_id).reason == "PartitionDown", "the job waits for its partition")
    running(side, job_id)


def test_the_rules_of_preemption_say_which_job_slurm_preempts(side: Side) -> None:
    with side.low_partition():
        gang, other = running(side, side.submit("news", 7)), low(side)
        rules = side.slurm.preemption()
        assert (rules.kind, rules.partitions["low"].tier) == (PreemptType.PARTITION, 0)
        assert rules.why_not(gang, other, side.now()) == ""
        assert rules.end_of(other) == "requeued"
        assert "PriorityTier is not below" in rules.why_not(other, gang, side.now())
        assert "PriorityTier is not below" in rules.why_not(gang, gang, side.now())


@pytest.mark.parametrize("requeue", [True, False])
def test_slurm_preempts_the_job_on_a_node_of_the_gangs_seats_and_no_other(side: Side, requeue: bool) -> None:
    with side.low_partition():
        gang = running(side, side.submit("news", 5))
        others = {job.nodes[0]: job for job in [low(side, requeue=requeue) for _ in range(3)]}
        *rest, taken = others
        failed, *healthy = gang.nodes
        side.slurm.drain_node(failed, REASON)
        side.slurm.create_reservation("seats", [*healthy, taken], "news", 60)
        side.slurm.set_job_reservation(gang.job_id, "seats")
        side.slurm.requeue_job(gang.job_id)
        pending(side, gang.job_id)
        start(side, gang.job_id)
        assert set(running(side, gang.job_id).nodes) == {*healthy, taken}
        after = job_of(side, others[taken].job_id)
        assert (after.state, after.restart_count) == (("PENDING", 1) if requeue else ("PREEMPTED", 0)), after
        assert {job_of(side, others[name].job_id).state for name in rest} == {"RUNNING"}


def test_a_gang_in_whose_seats_a_job_may_not_be_preempted_waits(side: Side) -> None:
    gang, other = running(side, side.submit("news", 5)), running(side, side.submit("games", 3))
    failed, *healthy = gang.nodes
    side.slurm.drain_node(failed, REASON)
    side.slurm.create_reservation("seats", [*healthy, other.nodes[0]], "news", 60)
    side.slurm.set_job_reservation(gang.job_id, "seats")
    side.slurm.requeue_job(gang.job_id)
    pending(side, gang.job_id)
    start(side, gang.job_id)
    side.wait(4)
    assert job_of(side, gang.job_id).state == "PENDING"
    assert job_of(side, other.job_id).state == "RUNNING"
