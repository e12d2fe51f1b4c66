"""An administrator or a time service sets the clock of the control plane's machine; Slurm answers late."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.recover.rehearsal import NODES, Rehearsal, first
from understudy_controlplane.decide.guards import lately_quarantined
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryStatus

pytestmark = [pytest.mark.integration, pytest.mark.patient]

SETS = ((-3600.0, True), (-200.0, False), (200.0, False), (3600.0, True))
"""Seconds, and whether slurmctld runs on the same machine. MUNGE refuses another one whose clock is minutes away."""


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


@pytest.mark.parametrize(("seconds", "with_slurm"), SETS)
def test_a_clock_that_is_set_is_reported_and_makes_no_node_silent(
    rehearsal: Rehearsal, seconds: float, with_slurm: bool
) -> None:
    rehearsal.clock.set_by(seconds, with_slurm=with_slurm)
    with capture_logs() as lines:
        rehearsal.run(60)
    (found,) = [line for line in lines if line["event"] == "clock_set"]
    assert (found["log_level"], found["jump_seconds"]) == ("error", seconds)
    assert not rehearsal.line.effects
    assert {rehearsal.state_of(node) for node in NODES} == {NodeState.IN_SERVICE}
    assert rehearsal.control_plane.loop.pulse.clock_jumps_total == 1


@pytest.mark.parametrize(("seconds", "with_slurm"), SETS)
def test_a_fault_after_it_is_dealt_with(rehearsal: Rehearsal, seconds: float, with_slurm: bool) -> None:
    rehearsal.clock.set_by(seconds, with_slurm=with_slurm)
    rehearsal.run(15)
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended, 30)
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
def test_the_gang_does_not_start_in_the_second_of_its_kill_by_slurms_clock(
    rehearsal: Rehearsal, seconds: float
) -> None:
    """Slurm would fail and hold it."""
    rehearsal.clock.set_by(seconds, with_slurm=False)
    rehearsal.run(15)
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: rehearsal.line.effects[f"start_job {rehearsal.gang}"], 30)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 10)
    job = next(one for one in rehearsal.fake.jobs() if one.job_id == rehearsal.gang)
    assert job.start_at is not None
    assert job.start_at - job.submit_at >= 1.0


@pytest.mark.parametrize("seconds", [-200.0, 200.0])
@pytest.mark.parametrize("effects", first(1, 4, 1))
def test_a_recovery_goes_on_when_the_clock_is_set_in_its_middle(
    rehearsal: Rehearsal, seconds: float, effects: int
) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: len(rehearsal.line.effects) >= effects)
    rehearsal.clock.set_by(seconds, with_slurm=False)
    rehearsal.run_until(rehearsal.ended, 60)
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUCCEEDED]
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]


def test_what_was_done_still_counts_when_it_was_set_forward_and_back(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    loop = rehearsal.control_plane.loop
    swaps = loop.look(0.0).history.swaps
    for days in (8, -8):
        rehearsal.clock.set_by(days * 86_400.0, with_slurm=False)
        rehearsal.run(3)
    assert len(swaps) == 1
    assert loop.look(0.0).history.swaps == swaps


@pytest.mark.parametrize("with_slurm", [False, True])
def test_a_fault_counts_on_a_node_that_was_cleared_before_it_was_set_back(
    rehearsal: Rehearsal, with_slurm: bool
) -> None:
    """A node is judged by what was found after it was cleared."""
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)
    rehearsal.run(2)
    rehearsal.fake.resume_node("n5")
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.IN_SERVICE)
    rehearsal.run(2)
    rehearsal.clock.set_by(-3600, with_slurm=with_slurm)
    rehearsal.run(5)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE, "nor does the fault from before count again"
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED, 20)


def test_a_successor_on_a_machine_whose_clock_is_a_second_behind_rewrites_no_times(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n2")
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.QUARANTINED, 30)
    since = rehearsal.control_plane.stores.fleet.nodes()["n2"].since
    rehearsal.clock.set_by(-1.0, with_slurm=False)
    assert rehearsal.clock.now() < since
    rehearsal.restart_control_plane()
    rehearsal.run_until(rehearsal.ended, 60)
    assert rehearsal.control_plane.stores.fleet.nodes()["n2"].since == since


def test_one_that_is_set_forward_ages_nothing_that_a_budget_counts(rehearsal: Rehearsal) -> None:
    """A node that waits for a person for an hour is in a budget of its own, and moves count for an hour."""
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended)
    loop = rehearsal.control_plane.loop
    before = loop.look(0.0)
    rehearsal.clock.set_by(7200.0, with_slurm=True)
    rehearsal.run(5)
    after = loop.look(0.0)
    assert (len(before.left), len(before.history.swaps)) == (len(after.left), len(after.history.swaps)) == (0, 1)
    assert len(lately_quarantined(after, rehearsal.config)) == 1


def test_a_node_that_dies_just_before_it_is_still_noticed(rehearsal: Rehearsal) -> None:
    rehearsal.kill_node("n2")
    rehearsal.run(1)
    rehearsal.clock.set_by(-3600, with_slurm=True)
    rehearsal.run_until(rehearsal.ended, 120)
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]


def test_a_slurm_that_takes_a_second_to_be_read_delays_a_recovery_and_no_more(rehearsal: Rehearsal) -> None:
    rehearsal.line.before = lambda name: rehearsal.fake.advance(1.0) if name == "nodes" else None
    rehearsal.fail("n2")
    rehearsal.run_until(rehearsal.ended, 120)
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUCCEEDED]
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]
