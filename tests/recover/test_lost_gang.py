"""Gangs that lose all their nodes at once, and gangs that Slurm does not start again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.recovery import RecoveryStatus

pytestmark = pytest.mark.integration


ANY_NUMBER = dict.fromkeys(("breaker_share", "breaker_share_max", "quarantined_share", "quarantined_share_max"), 1.0)
"""Half of the fleet is no small part of it."""


def small_gang(tmp_path: Path, nodes: int) -> Rehearsal:
    """The gang runs on the first nodes; three spares are held."""
    rehearsal = Rehearsal(tmp_path, silence={"mass_share": 0.6})
    rehearsal.fake.cancel(rehearsal.hungry)
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run(2)
    rehearsal.gang = rehearsal.fake.submit(rehearsal.gang_user, nodes, comment="understudy")
    rehearsal.run(2)
    assert rehearsal.gang_nodes() == [f"n{number}" for number in range(1, nodes + 1)]
    return rehearsal


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_gang_whose_nodes_all_lose_power_at_once_is_back_on_spares(tmp_path: Path, nodes: int) -> None:
    rehearsal = small_gang(tmp_path, nodes)
    for name in rehearsal.gang_nodes():
        rehearsal.kill_node(name)
    rehearsal.run_until(rehearsal.ended, 600)
    assert (rehearsal.gang_state(), rehearsal.recoveries()[-1].status) == (("RUNNING", 1), RecoveryStatus.SUCCEEDED)
    assert set(rehearsal.gang_nodes()) <= {"n6", "n7", "n8"}
    assert rehearsal.line.effects["keep_batch_host 3"] == 1
    listed = {one.kind for one in rehearsal.control_plane.loop.pulse.needs}
    assert NeedKind.RECONFIGURE in listed, "nothing but a person ends the wrong count of Slurm"


def test_a_gang_that_is_dead_as_a_whole_is_requeued_also_without_spares(tmp_path: Path) -> None:
    """Left to Slurm's own timeout it would be lost."""
    rehearsal = Rehearsal(tmp_path, silence={"mass_share": 0.6}, guards=ANY_NUMBER)
    rehearsal.fake.submit("student", 1)
    rehearsal.run(2)
    for name in rehearsal.gang_nodes():
        rehearsal.kill_node(name)
    rehearsal.run(240)
    assert (rehearsal.gang_state(), rehearsal.pool()) == (("PENDING", 1), ["n6", "n7", "n8"])
    rehearsal.run(2400)
    assert rehearsal.gang_state() == ("PENDING", 1)
    assert "it waits in Slurm's queue" in str(rehearsal.tickets)


def test_nodes_that_die_together_are_declared_down_together(tmp_path: Path) -> None:
    """Apart, the second of them could be the last that the requeued job waits for."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.kill_node("n1")
    rehearsal.kill_node("n2")
    rehearsal.run_until(rehearsal.ended, 600)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    effects = [name for name in rehearsal.line.effects if name.startswith(("down_nodes", "keep_batch_host"))]
    assert effects == ["down_nodes n1,n2"]


def hold_up(rehearsal: Rehearsal, reason: str) -> None:
    """Keeps Slurm from starting the gang after the requeue."""

    def after(name: str) -> None:
        if name == "requeue_job":
            rehearsal.fake.waits_for[rehearsal.gang] = reason

    rehearsal.line.after = after


def test_seats_are_held_while_the_gang_waits_for_what_passes(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    hold_up(rehearsal, "AssocGrpGRES")
    rehearsal.fail("n3")
    rehearsal.run(400)
    assert (rehearsal.gang_state(), rehearsal.hungry_state()) == (("PENDING", 1), "PENDING")
    rehearsal.fake.waits_for.clear()
    rehearsal.run_until(rehearsal.ended, 200)
    assert (rehearsal.gang_state(), rehearsal.recoveries()[-1].status) == (("RUNNING", 1), RecoveryStatus.SUCCEEDED)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert not rehearsal.tickets


def test_a_gang_that_slurm_does_not_start_for_half_an_hour_gives_its_seats_back_and_a_person_is_notified(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path)
    hold_up(rehearsal, "Licenses")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 2400)
    rehearsal.run(60)
    assert (rehearsal.gang_state(), rehearsal.hungry_state()) == (("PENDING", 1), "RUNNING")
    (ticket,) = [one for one in rehearsal.tickets if "job 1 " in str(one)]
    assert "it waits in Slurm's queue (Licenses)" in str(ticket)
    assert "`scontrol show job 1`" in str(ticket)


def test_a_gang_that_may_not_start_any_more_holds_its_seats_for_two_minutes_only(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    hold_up(rehearsal, "AssocMaxNodePerJobLimit")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 300)
    rehearsal.run(10)
    assert rehearsal.hungry_state() == "RUNNING"
    assert "AssocMaxNodePerJobLimit" in str(rehearsal.tickets)


def test_a_person_is_notified_of_a_gang_that_slurm_loses_in_its_move(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)

    def after(name: str) -> None:
        if name == "start_job":
            rehearsal.fake.end(rehearsal.gang, "FAILED")

    rehearsal.line.after = after
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 300)
    rehearsal.run(10)
    rehearsal.restart_control_plane()
    rehearsal.run(60)
    (ticket,) = [one for one in rehearsal.tickets if "job 1 " in str(one)]
    assert "`scontrol requeue 1` starts it again" in str(ticket)


@pytest.mark.parametrize(("asked_mb", "spare"), [(300_000, "n7"), (0, "n7"), (200_000, "n6")])
def test_a_spare_that_cannot_run_the_job_is_not_taken_for_it(tmp_path: Path, asked_mb: int, spare: str) -> None:
    """A job that asks for no memory had that of its node."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fake.build_with("n6", memory_mb=256_000)
    rehearsal.fake.ask_for_memory(rehearsal.gang, asked_mb)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", spare]


def test_a_gang_that_no_spare_can_run_stays(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    for name in ("n5", "n6", "n7", "n8"):
        rehearsal.fake.build_with(name, memory_mb=256_000)
    rehearsal.fake.ask_for_memory(rehearsal.gang, 300_000)
    rehearsal.fail("n3")
    rehearsal.run(30)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert not rehearsal.recoveries()
