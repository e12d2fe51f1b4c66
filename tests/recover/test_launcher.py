"""Gangs that a launcher drives, on a virtual cluster: the allocation is kept; where it cannot be, the pool follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from tests import builders as b
from tests.recover.rehearsal import Rehearsal, first
from understudy_controlplane.fleet.gang import LAST_STEPS_SECONDS, Gang
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, Recovery, RecoveryKind, RecoveryStatus, StepName
from understudy_controlplane.store import tables
from understudy_controlplane.store.facts import Circumstances
from understudy_wire.facts import (
    CheckpointShard,
    FirstStep,
    JobFact,
    LaunchCause,
    LaunchEnded,
    LaunchStarted,
    RankStarted,
)
from understudy_wire.launcher import LauncherOrders, LauncherPhase, LauncherState
from understudy_wire.ranks import RankWindow

pytestmark = [pytest.mark.integration, pytest.mark.patient]


class ObedientLauncher:
    """Launcher of the rehearsal's gang: seats n1 to n3, spare n4. Carries out its orders, a tick later."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.seats, self.spares, self.lost = ("n1", "n2", "n3"), ("n4",), ()  # type: tuple[str, ...], tuple[str, ...], tuple[str, ...]
        self.launch, self.phase = 0, LauncherPhase.RUNNING
        self.obeys = True
        self.asks_requeue = False
        self.speaks = True
        self.ended_well = False
        self.orders: list[LauncherOrders] = []

    def turn(self, seconds_ago: float = 0.0) -> None:
        launchers = self.rehearsal.control_plane.launchers
        orders = launchers.orders(self.rehearsal.gang)
        if orders is not None and (not self.orders or self.orders[-1] != orders):
            self.orders.append(orders)
        if orders is not None and self.obeys:
            self._carry_out(orders)
        if self.speaks:
            job, launch = self.rehearsal.gang, self.launch
            state = LauncherState(job, 0, launch, self.phase, self.seats, self.spares, self.lost, nodes_min=3)
            state = msgspec.structs.replace(state, ended_well=self.ended_well, asks_requeue=self.asks_requeue)
            launchers.note(Gang(state, "n1", self.rehearsal.fake.now - seconds_ago))

    def finish(self) -> None:
        """Every rank has ended well; its process, and Slurm's record of the job, end later."""
        self.phase, self.ended_well = LauncherPhase.LEAVING, True

    def wait_for_requeue(self, *blamed: str) -> None:
        """It needs more nodes than its allocation has. A minute later it ends, and its job has failed."""
        self.phase, self.asks_requeue = LauncherPhase.WAITING, True
        at, cause = self.rehearsal.fake.now, LaunchCause.HARDWARE
        report(self.rehearsal, LaunchEnded(1, 0, self.launch, "L80", "too few spares", at, cause=cause, blamed=blamed))

    def _carry_out(self, orders: LauncherOrders) -> None:
        self.spares = tuple(node for node in self.spares if node not in orders.bad)
        leaving = [node for node in self.seats if node in orders.bad]
        restart = orders.restart if orders.restart is not None and orders.restart.launch >= self.launch else None
        if restart is not None:
            leaving += [node for node in restart.without if node in self.seats][: len(self.spares)]
        if not leaving and restart is None:
            return
        if len(leaving) > len(self.spares):
            self.phase = LauncherPhase.WAITING
            return
        takes = dict(zip(leaving, self.spares, strict=False))
        self.seats = tuple(takes.get(node, node) for node in self.seats)
        self.spares = (*self.spares[len(leaving) :], *(node for node in leaving if node not in orders.bad))
        self.lost = (*self.lost, *(node for node in leaving if node in orders.bad))
        self.launch += 1


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


@pytest.fixture
def launcher(rehearsal: Rehearsal) -> Iterator[ObedientLauncher]:
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    yield launcher


def moves(rehearsal: Rehearsal) -> list[Recovery]:
    recoveries = rehearsal.control_plane.stores.recoveries.newest(100)
    return [one for one in reversed(recoveries) if one.swap is not None]


def all_ended(rehearsal: Rehearsal) -> bool:
    return bool(moves(rehearsal)) and all(one.status is not RecoveryStatus.RUNNING for one in moves(rehearsal))


def test_a_fault_is_dealt_with_within_the_allocation(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    (recovery,) = moves(rehearsal)
    assert (recovery.plan.kind, recovery.status) == (RecoveryKind.ALLOCATION_SWAP, RecoveryStatus.SUCCEEDED)
    assert launcher.seats == ("n1", "n4", "n3")
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.line.effects == {"drain_node n2": 1}
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED
    rehearsal.run(30)
    assert len(moves(rehearsal)) == 1, "a node that the gang left strands no gang"


def test_the_drain_is_there_before_the_launcher_gets_its_order(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    def say_no(name: str) -> None:
        if name == "drain_node":
            assert all("n2" not in orders.bad for orders in launcher.orders)

    rehearsal.line.before = say_no
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert "n2" in launcher.orders[-1].bad
    assert "xid.79" in launcher.orders[-1].bad["n2"]


def test_a_bad_spare_is_reported_and_no_gang_is_moved(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    rehearsal.fail("n4")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    (recovery,) = moves(rehearsal)
    assert [step.name for step in recovery.steps] == [StepName.DRAIN_NODES, StepName.ORDER_RESTART]
    assert (launcher.seats, launcher.spares, launcher.launch) == (("n1", "n2", "n3"), (), 0)


def test_without_a_spare_of_its_own_the_whole_allocation_moves(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: len(moves(rehearsal)) == 2 and all_ended(rehearsal))
    inside, pool = moves(rehearsal)
    assert (inside.plan.kind, pool.plan.kind) == (RecoveryKind.ALLOCATION_SWAP, RecoveryKind.POOL_SWAP)
    assert pool.status is RecoveryStatus.SUCCEEDED, rehearsal.describe()
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert rehearsal.gang_nodes() == ["n1", "n4", "n6", "n7"]


def lose_slurmd(rehearsal: Rehearsal, launcher: ObedientLauncher, node: str) -> None:
    """Agent and ranks there work on. Slurm sets the node down, and takes it out of the job, which has --no-kill."""
    launcher.seats, launcher.spares = ("n1", "n2", "n3", "n4"), ()
    rehearsal.fake.no_kill.add(rehearsal.gang)
    rehearsal.fake.slurmd_timeout_seconds = 30
    rehearsal.run(1)
    rehearsal.fake.kill_node(node)
    rehearsal.probe = lambda one: one.name not in {*rehearsal.silent, node}
    rehearsal.run_until(lambda: node not in rehearsal.gang_nodes())
    launcher.wait_for_requeue(node)


def test_a_gang_that_slurm_has_taken_a_node_from_gets_a_spare_of_the_pool(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    lose_slurmd(rehearsal, launcher, "n3")
    rehearsal.run_until(lambda: all_ended(rehearsal), 30)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE, "Slurm has set it down, and resumes it"


def test_without_a_spare_it_is_requeued_before_its_launcher_gives_up_and_gets_the_first_spare_that_comes(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path, spares={"count": 3, "no_spare": "wait"})
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.drain_by("alice", name, "new cables")
    rehearsal.fake.hold_job(rehearsal.hungry)
    lose_slurmd(rehearsal, launcher, "n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("PENDING", 1), 30)
    launcher.speaks = False
    rehearsal.fake.resume_node("n7")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 200)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n7"]


def test_a_gang_whose_launcher_alone_has_lost_a_node_gets_a_spare_too(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    """Its ranks outlived SIGKILL there, for instance. Nothing else is known against that node."""
    launcher.seats, launcher.spares = ("n1", "n2", "n3", "n4"), ()
    rehearsal.run(1)
    launcher.wait_for_requeue("n3")
    rehearsal.run_until(lambda: all_ended(rehearsal), 30)
    assert rehearsal.gang_state() == ("RUNNING", 1), rehearsal.describe()
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE


def test_a_launcher_without_spares_confirms_a_dead_node(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    """No rank reports steps; Slurm would wait for five minutes, the launcher waits for one."""
    launcher.seats, launcher.spares = ("n1", "n2", "n3", "n4"), ()
    rehearsal.run(1)
    rehearsal.kill_node("n3")
    rehearsal.run(3)
    launcher.wait_for_requeue("n3")
    rehearsal.run_until(lambda: all_ended(rehearsal), 30)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


@pytest.mark.parametrize("speaks", [True, False])
def test_a_launcher_that_does_not_follow_its_orders_is_not_waited_for(
    rehearsal: Rehearsal, launcher: ObedientLauncher, speaks: bool
) -> None:
    launcher.obeys = False
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: moves(rehearsal))
    launcher.speaks = speaks
    rehearsal.run_until(lambda: len(moves(rehearsal)) == 2 and all_ended(rehearsal), 120)
    inside, pool = moves(rehearsal)
    assert inside.status is RecoveryStatus.FAILED
    assert inside.outcome.startswith("order_restart: not done after 20 s")
    assert (pool.plan.kind, pool.status) == (RecoveryKind.POOL_SWAP, RecoveryStatus.SUCCEEDED)
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]


def test_a_launcher_that_is_not_heard_is_not_asked(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    launcher.speaks = False
    rehearsal.run(20)
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.plan.kind for one in moves(rehearsal)] == [RecoveryKind.POOL_SWAP]


def test_in_mode_observe_launchers_get_no_orders(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    rehearsal.restart_control_plane(mode="observe")
    launcher.orders.clear()
    rehearsal.run(3)
    rehearsal.fail("n2")
    rehearsal.run(5)
    assert launcher.orders == []
    assert rehearsal.line.effects == {}


def test_a_restart_forgets_neither_the_gang_nor_its_orders(rehearsal: Rehearsal, launcher: ObedientLauncher) -> None:
    report(rehearsal, LaunchStarted(1, 0, 0, launcher.seats, launcher.spares, 1.0))
    launcher.obeys = False
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: moves(rehearsal))
    rehearsal.restart_control_plane()
    assert rehearsal.control_plane.launchers.gangs()[1].seats == launcher.seats
    launcher.obeys = True
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.SUCCEEDED]
    rehearsal.restart_control_plane()
    launcher.orders.clear()
    rehearsal.run(2)
    assert list(launcher.orders[0].bad) == ["n2"]


def test_just_after_a_start_a_launcher_is_given_time_to_be_heard(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    report(rehearsal, LaunchStarted(1, 0, 0, launcher.seats, launcher.spares, 1.0))
    launcher.speaks = False
    rehearsal.restart_control_plane()
    rehearsal.fail("n2")
    rehearsal.run(4)
    assert moves(rehearsal) == []
    launcher.speaks = True
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.plan.kind for one in moves(rehearsal)] == [RecoveryKind.ALLOCATION_SWAP]


def test_an_administrator_who_resumes_the_node_takes_the_order_back(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    rehearsal.fake.resume_node("n2")
    rehearsal.run_until(lambda: not launcher.orders[-1].bad)


def test_a_dead_node_is_drained_and_its_job_is_not_ended_by_that(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    rehearsal.kill_node("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal), 60)
    assert rehearsal.line.effects == {"drain_node n2": 1}
    assert launcher.seats == ("n1", "n4", "n3")
    assert rehearsal.gang_state() == ("RUNNING", 0)


ALL_ENDED_WELL = LaunchEnded(1, 0, 0, "L10", "every rank ended well", 2.0, cause=LaunchCause.DONE)


@pytest.mark.parametrize("dead", [True, False])
def test_a_gang_that_has_finished_is_not_requeued_while_slurm_still_shows_it_as_running(
    rehearsal: Rehearsal, launcher: ObedientLauncher, dead: bool
) -> None:
    launcher.finish()
    rehearsal.run(1)
    if dead:
        rehearsal.kill_node("n3")
    else:
        rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.state_of("n3") is NodeState.QUARANTINED)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert moves(rehearsal) == []
    assert rehearsal.line.effects == {"drain_node n3": 1}


def test_a_gang_that_has_finished_stays_so_after_a_restart_of_the_control_plane(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    """Also where its last state did not arrive: how the launch ended is a fact."""
    report(rehearsal, LaunchStarted(1, 0, 0, launcher.seats, launcher.spares, 1.0), ALL_ENDED_WELL)
    launcher.speaks = False
    rehearsal.restart_control_plane()
    rehearsal.kill_node("n3")
    rehearsal.run_until(lambda: rehearsal.state_of("n3") is NodeState.QUARANTINED)
    rehearsal.run(60)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert moves(rehearsal) == []


def test_a_gang_that_finishes_just_before_its_requeue_is_not_requeued(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    launcher.spares = ()
    rehearsal.run(1)

    def finish(name: str) -> None:
        if name == "set_job_reservation":
            launcher.finish()
            report(rehearsal, ALL_ENDED_WELL)

    rehearsal.line.before = finish
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    (recovery,) = moves(rehearsal)
    assert (recovery.plan.kind, recovery.status) == (RecoveryKind.POOL_SWAP, RecoveryStatus.OVERTAKEN)
    assert "every rank of its last launch has ended well" in recovery.outcome
    rehearsal.run(30)
    assert (rehearsal.gang_state(), len(moves(rehearsal))) == (("RUNNING", 0), 1)
    assert rehearsal.pool() == ["n6", "n7", "n8"]


def test_a_gang_that_finishes_instead_of_its_restart_needs_none(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    launcher.obeys = False
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: moves(rehearsal))
    launcher.finish()
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.SUCCEEDED]
    rehearsal.run(30)
    assert (rehearsal.gang_state(), len(moves(rehearsal))) == (("RUNNING", 0), 1)


@pytest.mark.parametrize("trains", [False, True])
def test_a_job_that_trains_on_without_its_launcher_is_moved_and_one_that_copies_its_results_is_not(
    rehearsal: Rehearsal, launcher: ObedientLauncher, trains: bool
) -> None:
    long_ago = LAST_STEPS_SECONDS + 60
    launcher.finish()
    launcher.turn(seconds_ago=long_ago)
    launcher.speaks = False
    report(rehearsal, ALL_ENDED_WELL, seconds_ago=long_ago)
    if trains:
        seconds, job = [1.0] * 9, rehearsal.fake.job(rehearsal.gang)
        assert job is not None
        steps = RankWindow(rehearsal.gang, 0, 0, 1, user_id=job.user_id, self_seconds=seconds, wall_seconds=seconds)
        rehearsal.report_steps("n1", steps)
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.QUARANTINED)
    rehearsal.run(60)
    assert [(one.plan.kind, one.status) for one in moves(rehearsal)] == [
        (RecoveryKind.POOL_SWAP, RecoveryStatus.SUCCEEDED)
    ] * trains


def test_the_gang_of_a_second_launcher_in_the_allocation_is_moved(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    report(rehearsal, LaunchStarted(1, 0, 0, launcher.seats, launcher.spares, 1.0), ALL_ENDED_WELL)
    launcher.launch = 3
    launcher.finish()
    rehearsal.run(2)
    launcher.launch, launcher.phase, launcher.ended_well = 0, LauncherPhase.RUNNING, False
    report(rehearsal, LaunchStarted(1, 0, 0, launcher.seats, launcher.spares, 3.0))
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [(one.plan.kind, one.status) for one in moves(rehearsal)] == [
        (RecoveryKind.ALLOCATION_SWAP, RecoveryStatus.SUCCEEDED)
    ]


def test_what_earlier_allocations_spent_counts_until_there_is_progress(rehearsal: Rehearsal) -> None:
    def ended(launch: int, restart_count: int = 0, progressed: bool = False, counted: bool = True) -> LaunchEnded:
        at = restart_count * 100.0 + launch
        return LaunchEnded(1, restart_count, launch, "L130", "it failed", at, progressed, counted)

    with rehearsal.engine.connect() as connection:
        row = connection.execute(select(tables.job.c.id).where(tables.job.c.job_id == 1)).scalar_one()
    launches = rehearsal.control_plane.stores.launches
    rehearsal.fake.end(rehearsal.hungry)
    rehearsal.fake.requeue_job(1)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 200)
    report(rehearsal, ended(0), ended(1), ended(2, counted=False), ended(3, restart_count=1))
    assert launches.earlier_allocations(row, 1, ()).spent.launches_without_progress == 2
    assert launches.earlier_allocations(row, 2, ()).spent.launches_without_progress == 3
    report(rehearsal, ended(4, restart_count=1, progressed=True, counted=False), ended(5, restart_count=1))
    assert launches.earlier_allocations(row, 2, ()).spent.launches_without_progress == 1


def blame(job_id: int, node: str = "n5", launch: int = 1, rank: int = 0) -> LaunchEnded:
    hole = LaunchCause.BLACK_HOLE
    return LaunchEnded(job_id, 0, launch, "L120", "first again", 1.0, cause=hole, failed_node=node, rank=rank)


def blame_n5(rehearsal: Rehearsal, user: str, launch: int = 1) -> int:
    """A job of this user there, which ends."""
    job = rehearsal.fake.submit(user, 1, comment="understudy")
    rehearsal.run(2)
    report(rehearsal, blame(job, launch=launch))
    rehearsal.fake.end(job)
    rehearsal.run(1)
    return job


def test_a_job_blames_no_node_of_others(rehearsal: Rehearsal) -> None:
    blame_n5(rehearsal, "student")
    report(rehearsal, blame(rehearsal.gang))
    rehearsal.run(1)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE


def test_two_users_that_blame_a_node_make_it_a_suspect(rehearsal: Rehearsal) -> None:
    blame_n5(rehearsal, "researcher")
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    blame_n5(rehearsal, "researcher")
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE, "one user's program, submitted again"
    report(rehearsal, blame(rehearsal.gang, "n8"), blame(rehearsal.gang))
    blame_n5(rehearsal, "student")
    assert rehearsal.state_of("n5") is NodeState.SUSPECT
    rehearsal.run(30)
    assert rehearsal.state_of("n5") is NodeState.SUSPECT
    rehearsal.run(3700)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE


def test_a_failure_that_goes_with_the_rank_to_another_node_clears_the_first(rehearsal: Rehearsal) -> None:
    rehearsal.fake.end(rehearsal.hungry)
    rehearsal.fake.end(rehearsal.gang)
    rehearsal.run(2)
    other = rehearsal.fake.submit("student", 5, comment="understudy")
    rehearsal.run(2)
    report(rehearsal, blame(other), LaunchEnded(other, 0, 2, "L100", "given up", 2.0, failed_node="n4", rank=0))
    rehearsal.fake.end(other)
    rehearsal.run(2)
    mine = rehearsal.fake.submit("researcher", 5, comment="understudy")
    rehearsal.run(2)
    report(rehearsal, blame(mine))
    rehearsal.run(1)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    report(rehearsal, blame(other, launch=3))
    rehearsal.run(1)
    assert rehearsal.state_of("n5") is NodeState.SUSPECT


def report(rehearsal: Rehearsal, *facts: JobFact, seconds_ago: float = 0.0) -> None:
    control_plane = rehearsal.control_plane
    jobs = {job.job_id: job for job in rehearsal.fake.jobs()}
    known = control_plane.stores.fleet.known_jobs("testbed", jobs)
    for fact in facts:
        job = jobs[fact.job_id]
        own = msgspec.structs.replace(fact, user_id=job.user_id)
        node = job.nodes[0] if job.nodes else "n1"
        around = Circumstances(nodes_now=control_plane.telemetry.nodes_of)
        received_at = rehearsal.fake.now - seconds_ago
        assert control_plane.stores.facts.record(node, [own], received_at, known.get, around) == []


@pytest.mark.parametrize(("bound", "limit"), first(1, (2, 602), (60, 604), (0, 600)))
def test_time_lost_is_credited_within_the_sites_bound(tmp_path: Path, bound: int, limit: int) -> None:
    """Three minutes of work since the last checkpoint, and the seconds until the next step."""
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": bound})
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    rehearsal.fake.set_time_limit(rehearsal.gang, 600)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5))
    report(rehearsal, CheckpointShard(1, 0, 0, 1, 40, "/c/40", "r0", 1, "a" * 64, rehearsal.fake.now))
    rehearsal.run(180)
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: launcher.launch == 1)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 6, launch=1))
    report(rehearsal, FirstStep(1, 0, 0, 1, 41, rehearsal.fake.now + 0.5, launch=1))
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.SUCCEEDED]
    assert time_limit(rehearsal) == limit
    rehearsal.fail("n4")  # the bound is for the whole allocation
    launcher.spares = ("n3",)
    launcher.seats = ("n1", "n4")
    rehearsal.run_until(lambda: launcher.launch == 2)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 7, launch=2))
    report(rehearsal, FirstStep(1, 0, 0, 1, 41, rehearsal.fake.now + 0.5, launch=2))
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert time_limit(rehearsal) - 600 <= bound


def test_time_is_credited_for_a_dead_node_that_the_launcher_replaced_first(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": 60})
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    rehearsal.fake.set_time_limit(rehearsal.gang, 600)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5))
    report(rehearsal, CheckpointShard(1, 0, 0, 1, 40, "/c/40", "r0", 1, "a" * 64, rehearsal.fake.now))
    rehearsal.run(180)
    rehearsal.kill_node("n2")
    at, dead = rehearsal.fake.now + 3, LaunchCause.HARDWARE
    report(rehearsal, LaunchEnded(1, 0, 0, "L50", "n2 is silent", at, cause=dead, blamed=("n2",)))
    launcher.seats, launcher.spares, launcher.lost, launcher.launch = ("n1", "n4", "n3"), (), ("n2",), 1
    report(rehearsal, RankStarted(1, 0, 0, 1, at + 1, 6, launch=1), FirstStep(1, 0, 0, 1, 41, at + 2, launch=1))
    rehearsal.run_until(lambda: all_ended(rehearsal))
    (recovery,) = moves(rehearsal)
    assert (recovery.status, b.plan_as(AllocationSwapPlan, recovery.plan).launch) == (RecoveryStatus.SUCCEEDED, 0)
    assert time_limit(rehearsal) == 604
    rehearsal.run(60)
    assert time_limit(rehearsal) == 604


def test_a_limit_that_a_user_has_lowered_since_stays(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": 60})
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    rehearsal.fake.set_time_limit(rehearsal.gang, 600)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5))
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: launcher.launch == 1)
    rehearsal.fake.set_time_limit(rehearsal.gang, 90)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 6, launch=1))
    report(rehearsal, FirstStep(1, 0, 0, 1, 41, rehearsal.fake.now + 90.0, launch=1))
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert time_limit(rehearsal) == 90


def test_the_ranks_of_the_launch_given_up_are_not_taken_for_the_new_ones(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5), FirstStep(1, 0, 0, 1, 40, rehearsal.fake.now))
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: launcher.launch == 1)
    rehearsal.run(3)
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.RUNNING]
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 6, launch=1))
    report(rehearsal, FirstStep(1, 0, 0, 1, 41, rehearsal.fake.now, launch=1))
    rehearsal.run_until(lambda: all_ended(rehearsal))


def time_limit(rehearsal: Rehearsal) -> int:
    return next(job.time_limit_minutes or 0 for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)


def broken_off(launch: int, at: float, cause: LaunchCause) -> LaunchEnded:
    return LaunchEnded(1, 0, launch, "L130", "rank 1 on n2 ended with 1", at, cause=cause, failed_node="n2", rank=1)


def crash(rehearsal: Rehearsal, launcher: ObedientLauncher, cause: LaunchCause = LaunchCause.PROGRAM) -> None:
    """And another launch, by its launcher itself."""
    report(rehearsal, broken_off(launcher.launch, rehearsal.fake.now, cause))
    launcher.launch += 1


def step(rehearsal: Rehearsal, launch: int) -> None:
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 6 + launch, launch=launch))
    report(rehearsal, FirstStep(1, 0, 0, 1, 41, rehearsal.fake.now + 0.5, launch=launch))


def incidents_of_the_gang(rehearsal: Rehearsal) -> list[tuple[str, bool]]:
    """Rule of the finding, and whether it is over."""
    with rehearsal.engine.connect() as connection:
        table = tables.incident
        rows = connection.execute(select(table.c.rule, table.c.closed_at).order_by(table.c.id)).all()
    return [(row.rule, row.closed_at is not None) for row in rows if row.rule.startswith("launches.")]


def with_a_checkpoint(rehearsal: Rehearsal) -> ObedientLauncher:
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    rehearsal.fake.set_time_limit(rehearsal.gang, 600)
    report(rehearsal, RankStarted(1, 0, 0, 1, rehearsal.fake.now, 5))
    report(rehearsal, CheckpointShard(1, 0, 0, 1, 40, "/c/40", "r0", 1, "a" * 64, rehearsal.fake.now))
    return launcher


@pytest.mark.parametrize(
    ("cause", "rule"), [(LaunchCause.PROGRAM, "launches.crash"), (LaunchCause.HANG, "launches.hang")]
)
@pytest.mark.parametrize(("bound", "limit"), first(1, (60, 604), (2, 602), (0, 600)))
def test_what_only_the_launcher_saw_is_an_incident_and_its_time_is_credited(
    tmp_path: Path, cause: LaunchCause, rule: str, bound: int, limit: int
) -> None:
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": bound})
    launcher = with_a_checkpoint(rehearsal)
    rehearsal.run(180)
    crash(rehearsal, launcher, cause)
    rehearsal.run(5)
    assert incidents_of_the_gang(rehearsal) == [(rule, False)]
    step(rehearsal, launcher.launch)
    rehearsal.run(30)
    assert time_limit(rehearsal) == limit
    of_kind = [(one.plan.kind, one.status) for one in moves(rehearsal)]
    assert of_kind == [(RecoveryKind.LAUNCHER_RESTART, RecoveryStatus.SUCCEEDED)] * (bound > 0)
    assert all(not orders.bad and orders.restart is None for orders in launcher.orders), "nothing is ordered"
    assert rehearsal.state_of("n2") is NodeState.IN_SERVICE
    rehearsal.run(900)
    assert (time_limit(rehearsal), len(moves(rehearsal))) == (limit, len(of_kind)), "once"


def test_a_gang_that_crashes_again_before_its_first_step_is_credited_once(tmp_path: Path) -> None:
    """The credit reaches from its last checkpoint until it works again; the same minutes are not counted for each
    crash.
    """
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": 60})
    launcher = with_a_checkpoint(rehearsal)
    rehearsal.run(180)
    crash(rehearsal, launcher)
    rehearsal.run(60)
    crash(rehearsal, launcher)
    rehearsal.run(10)
    step(rehearsal, launcher.launch)
    rehearsal.run(60)
    assert time_limit(rehearsal) == 605
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.SUCCEEDED]


def test_a_restart_that_was_ordered_is_no_restart_of_the_launchers_own(
    rehearsal: Rehearsal, launcher: ObedientLauncher
) -> None:
    """A rank on the node with the Xid fails, which its launcher reports too."""
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: launcher.launch == 1)
    report(rehearsal, broken_off(0, rehearsal.fake.now, LaunchCause.PROGRAM))
    rehearsal.run_until(lambda: all_ended(rehearsal))
    rehearsal.run(10)
    assert [one.plan.kind for one in moves(rehearsal)] == [RecoveryKind.ALLOCATION_SWAP]
    assert incidents_of_the_gang(rehearsal) == []


def test_in_mode_observe_a_crash_is_recorded_and_no_time_credited(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path, recovery={"time_credit_minutes_max": 60})
    launcher = with_a_checkpoint(rehearsal)
    rehearsal.restart_control_plane(mode="observe")
    rehearsal.run(20)
    crash(rehearsal, launcher)
    rehearsal.run(20)
    step(rehearsal, launcher.launch)
    rehearsal.run(20)
    assert incidents_of_the_gang(rehearsal)[0][0] == "launches.crash"
    assert (time_limit(rehearsal), moves(rehearsal)) == (600, [])
