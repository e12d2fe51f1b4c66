"""The fleet stays in use: what looks like a fault of many nodes, and is none, freezes nothing and uses nothing up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recover.rehearsal import NODES, Rehearsal
from understudy_agent.wire import HardwareEvent, HardwareKind, RankWindow
from understudy_controlplane.fleet.node import NodeState

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
    told = [one for one in rehearsal.decisions() if "|106|" in one]
    assert len(told) == 4, "a restart brings no licence back"
    assert not rehearsal.line.effects
    rehearsal.fail(victim)
    rehearsal.run_until(lambda: rehearsal.gang_nodes() not in ([], [victim]), 60)
    assert rehearsal.state_of(victim) is NodeState.QUARANTINED
    assert [job.restart_count for job in fake.jobs() if job.job_id in sweep] == [0] * 4


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
    rehearsal.control_plane.stores.fleet.add_intent("reset-breaker", "n5 is broken", "alice", rehearsal.fake.now)
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)
