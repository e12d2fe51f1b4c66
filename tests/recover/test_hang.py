"""Gangs that hang, on a virtual cluster: restarted while they make progress. The findings of a hang are made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal, first
from tests.recover.test_launcher import ObedientLauncher, all_ended, moves
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind

pytestmark = [pytest.mark.integration, pytest.mark.patient]

Hang = Callable[[str | None], None]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


@pytest.fixture
def hang(rehearsal: Rehearsal) -> Hang:
    """The gang hangs from now on until its next attempt or launch; the node named, or None."""
    hanging: list[tuple[str | None, object]] = []

    def attempt(snapshot: Snapshot) -> object:
        job = next(one for one in snapshot.jobs.values() if one.key.job_id == rehearsal.gang)
        gang = snapshot.progress.gangs.get(job.key)
        return job.slurm.restart_count, gang.attempt.launch if gang else 0

    def hangs(snapshot: Snapshot, _config: Config) -> Iterator[Finding]:
        for name, since in hanging:
            job = next(one for one in snapshot.jobs.values() if one.key.job_id == rehearsal.gang)
            if job.running and attempt(snapshot) == since:
                words = "no step has ended for 600 s"
                signal = Signal.GANG_HUNG if name else Signal.GANG_HUNG_UNNAMED
                yield Finding(signal, "hang", name or "", snapshot.now - 600, words, job=job.key)

    def begin(name: str | None) -> None:
        snapshot = rehearsal.control_plane.loop.pulse.snapshot
        assert snapshot is not None
        hanging[:] = [(name, attempt(snapshot))]

    loop = rehearsal.control_plane.loop
    loop.detectors = {**loop.detectors, "hangs": hangs}
    return begin


def test_a_job_of_the_pool_comes_back_on_its_own_seats(rehearsal: Rehearsal, hang: Hang) -> None:
    incidents = rehearsal.control_plane.stores.incidents
    hang(None)
    rehearsal.run_until(lambda: bool(incidents.open_incidents()))
    assert [one.subject.kind for one in incidents.open_incidents().values()] == [SubjectKind.GANG]
    rehearsal.run_until(rehearsal.ended)
    assert [one.status for one in rehearsal.recoveries()] == [RecoveryStatus.SUCCEEDED], rehearsal.describe()
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n3", "n4"])
    assert not any(effect.startswith("drain_node") for effect in rehearsal.line.effects)
    assert rehearsal.hungry_state() == "PENDING"
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run_until(lambda: not incidents.open_incidents())


def test_the_named_node_gives_its_seat_to_a_spare_and_stays_in_service(rehearsal: Rehearsal, hang: Hang) -> None:
    hang("n3")
    rehearsal.run_until(rehearsal.ended)
    assert (rehearsal.gang_state(), rehearsal.gang_nodes()) == (("RUNNING", 1), ["n1", "n2", "n4", "n6"])
    assert rehearsal.state_of("n3") is NodeState.SUSPECT
    assert not any(effect.startswith("drain_node") for effect in rehearsal.line.effects)


def test_after_three_restarts_without_progress_it_is_left_to_a_person(rehearsal: Rehearsal, hang: Hang) -> None:
    for count in range(1, 4):
        rehearsal.run(3)  # the newest attempt is seen
        hang(None)
        rehearsal.run_until(lambda count=count: len(rehearsal.recoveries()) == count and rehearsal.ended())  # type: ignore[misc]
    rehearsal.run(3)
    hang(None)
    rehearsal.run(60)
    assert len(rehearsal.recoveries()) == 3
    assert rehearsal.gang_state() == ("RUNNING", 3)
    assert any("restart_budget" in key for key in rehearsal.decisions())


def test_a_launcher_restarts_its_gang_without_the_named_node(rehearsal: Rehearsal, hang: Hang) -> None:
    launcher = ObedientLauncher(rehearsal)
    rehearsal.each_tick = launcher.turn
    rehearsal.run(1)
    hang("n2")
    rehearsal.run_until(lambda: all_ended(rehearsal))
    assert [one.status for one in moves(rehearsal)] == [RecoveryStatus.SUCCEEDED]
    assert (launcher.seats, launcher.spares, launcher.lost) == (("n1", "n4", "n3"), ("n2",), ())
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.line.effects == {}
    assert rehearsal.state_of("n2") is NodeState.SUSPECT


@pytest.mark.parametrize("moment", first(1, "set_job_reservation", "create_reservation"))
@pytest.mark.parametrize("resumed", [True, False])
def test_a_gang_that_is_suspended_before_its_restart_is_judged_afresh(
    rehearsal: Rehearsal, hang: Hang, moment: str, resumed: bool
) -> None:
    loop = rehearsal.control_plane.loop

    def suspends(name: str) -> None:
        if name == moment:
            rehearsal.line.after = lambda _name: None
            rehearsal.fake.suspend(rehearsal.gang)
            loop.detectors = {name: one for name, one in loop.detectors.items() if name != "hangs"}
            if resumed:
                rehearsal.fake.go_on(rehearsal.gang)

    rehearsal.line.after = suspends
    hang(None)
    rehearsal.run_until(rehearsal.ended)
    (recovery,) = rehearsal.recoveries()
    assert recovery.status is RecoveryStatus.OVERTAKEN
    assert "was suspended since its hang was found" in recovery.outcome
    assert rehearsal.gang_state() == ("RUNNING" if resumed else "SUSPENDED", 0)
