"""The fleet stays in use: what looks like a fault of many nodes, and is none, freezes nothing and uses nothing up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.recover.rehearsal import NODES, Rehearsal
from tests.simulator.slurm import NOT_RESPONDING_SECONDS, SLURMD_TIMEOUT_SECONDS
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.store import tables
from understudy_wire.facts import HardwareEvent, HardwareKind
from understudy_wire.ranks import RankWindow

pytestmark = [pytest.mark.integration, pytest.mark.patient]

HOUR = 3600.0


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path)
    yield made
    made.control_plane.close()


def outage(rehearsal: Rehearsal, node: str, seconds: float = 100.0) -> None:
    """The port of the node is up again after this time."""
    event = HardwareEvent(
        f"boot of {node}", rehearsal.fake.now - seconds, HardwareKind.PORT_OUTAGE, "mlx5_0/1", None, seconds
    )
    rehearsal.control_plane.stores.facts.record(node, [event], rehearsal.clock.now(), lambda _: None)


def test_a_leaf_switch_that_reboots_three_times_a_day_takes_none_of_its_nodes_out(rehearsal: Rehearsal) -> None:
    for _ in range(3):
        for name in NODES:
            outage(rehearsal, name)
        rehearsal.run(HOUR)
    assert {rehearsal.state_of(name) for name in NODES} == {NodeState.IN_SERVICE}
    assert not rehearsal.line.effects
    for _ in range(3):
        outage(rehearsal, "n2")
        rehearsal.run(300)
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED, "a cable is still one"
    assert "n2" not in rehearsal.gang_nodes()


def test_four_jobs_of_one_user_that_wait_for_a_licence_keep_no_broken_node_in_service(rehearsal: Rehearsal) -> None:
    """They stop in the same minute. The gang of another user trains on, until its GPU falls off the bus."""
    fake = rehearsal.fake
    for job in (rehearsal.gang, rehearsal.hungry):
        fake.cancel(job)
    rehearsal.run(5)
    sweep = [fake.submit("student", 1, comment="understudy") for _ in range(4)]
    rehearsal.run(2)
    rehearsal.gang = fake.submit(rehearsal.gang_user, 1, comment="understudy")
    rehearsal.run(2)
    (victim,) = rehearsal.gang_nodes()
    training = {*sweep, rehearsal.gang}
    began = fake.now

    def steps() -> None:
        for job in fake.jobs():
            if job.job_id in training and job.state == "RUNNING" and job.restart_count == 0:
                step, five = int((fake.now - began) / 5), [5.0]
                window = RankWindow(
                    job.job_id, 0, 0, 1, user_id=job.user_id, first_step=step, self_seconds=five, wall_seconds=five
                )
                rehearsal.report_steps(job.nodes[0], window)

    rehearsal.each_tick = steps
    rehearsal.run(100)
    training -= set(sweep)
    rehearsal.run(2000)
    recorded = [one for one in rehearsal.decisions() if "|106|" in one]
    assert len(recorded) == 4, "a restart brings no licence back"
    assert not rehearsal.line.effects
    rehearsal.fail(victim)
    rehearsal.run_until(lambda: rehearsal.gang_nodes() not in ([], [victim]), 60)
    assert rehearsal.state_of(victim) is NodeState.QUARANTINED
    assert [job.restart_count for job in fake.jobs() if job.job_id in sweep] == [0] * 4


@pytest.mark.long
def test_a_rule_that_is_wrong_ten_times_an_hour_is_stopped_within_a_day_and_a_person_is_paged_at_once(
    rehearsal: Rehearsal,
) -> None:
    """An administrator finds each node well and resumes it."""
    rehearsal.fake.cancel(rehearsal.hungry)
    for _ in range(12):
        rehearsal.fail("n5")
        rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)
        rehearsal.run(30)
        rehearsal.fake.resume_node("n5")
        rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.IN_SERVICE)
        rehearsal.run(330)
    tickets = len(rehearsal.tickets)
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: len(rehearsal.tickets) > tickets, 60)
    assert "rule xid.79 has taken out 12 nodes within a day" in str(rehearsal.tickets[-1])
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    rehearsal.fail("n2", 95)
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.QUARANTINED)
    rehearsal.control_plane.stores.requests.ask(Verb.RESET_BREAKER, FLEET, "n5 is broken", "alice", rehearsal.fake.now)
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)


class TestThePoolHasOneSize:
    """Three spares, and one idle node beside them."""

    @pytest.fixture
    def rehearsal(self, rehearsal: Rehearsal) -> Rehearsal:
        rehearsal.fake.cancel(rehearsal.hungry)
        rehearsal.run(2)
        return rehearsal

    def test_spares_that_power_saving_switches_off_are_spares(self, rehearsal: Rehearsal) -> None:
        for name in ("n5", "n6", "n7", "n8"):
            assert rehearsal.fake.power_down(name)
            rehearsal.silent.add(name)
        rehearsal.run(600)
        rehearsal.fake.power_up("n5")
        rehearsal.silent.discard("n5")
        rehearsal.run(120)
        assert rehearsal.pool() == ["n6", "n7", "n8"]
        assert not rehearsal.line.effects
        rehearsal.fail("n2")
        rehearsal.run_until(rehearsal.ended)
        assert "n5" in rehearsal.gang_nodes(), "the idle node that is awake"

    def test_a_gang_without_another_node_gets_a_spare_when_it_has_booted(self, rehearsal: Rehearsal) -> None:
        for name in ("n5", "n6", "n7", "n8"):
            rehearsal.fake.power_down(name)
            rehearsal.silent.add(name)
        rehearsal.run(60)
        rehearsal.fail("n2")
        rehearsal.run(120)
        assert "n2" in rehearsal.gang_nodes()
        assert any("power saving has switched n6, n7, n8 off" in one for one in reasons(rehearsal))
        rehearsal.fake.power_up("n8")
        rehearsal.silent.discard("n8")
        rehearsal.run_until(rehearsal.ended)
        assert "n8" in rehearsal.gang_nodes()

    def test_a_missed_ping_brings_no_further_node_into_it(self, rehearsal: Rehearsal) -> None:
        rehearsal.fake.kill_node("n8")  # slurmd alone: the agent reports
        rehearsal.run(NOT_RESPONDING_SECONDS + 20)
        assert "NOT_RESPONDING" in next(one for one in rehearsal.fake.nodes() if one.name == "n8").flags
        rehearsal.fake.start_node("n8")
        rehearsal.run(60)
        assert rehearsal.pool() == ["n6", "n7", "n8"]
        assert not rehearsal.line.effects

    def test_a_spare_that_was_lost_is_replaced_and_the_pool_gives_one_back_when_it_returns(
        self, rehearsal: Rehearsal
    ) -> None:
        rehearsal.fake.kill_node("n8")
        rehearsal.run(SLURMD_TIMEOUT_SECONDS + 60)
        assert rehearsal.pool() == ["n5", "n6", "n7", "n8"], "replaced; lost, it is still reserved"
        rehearsal.fake.start_node("n8")
        rehearsal.fake.resume_node("n8")
        rehearsal.run(60)
        assert rehearsal.pool() == ["n6", "n7", "n8"]
        rehearsal.fake.submit("student", 1)
        rehearsal.run(5)
        assert [job.nodes for job in rehearsal.fake.jobs() if job.state == "RUNNING" and job.user == "student"] == [
            ("n5",)
        ]

    def test_a_restart_of_the_control_plane_gives_no_spare_back(self, rehearsal: Rehearsal) -> None:
        rehearsal.restart_control_plane()
        rehearsal.run(60)
        assert rehearsal.pool() == ["n6", "n7", "n8"]
        assert not rehearsal.line.effects


def reasons(rehearsal: Rehearsal) -> list[str]:
    with rehearsal.engine.connect() as connection:
        return [row.reason for row in connection.execute(select(tables.decision.c.reason))]
