"""Observation reads; what has to be recorded is returned to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, event, update

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.fleet.job import Attempt, Reached
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.observe.observer import Observation
from understudy_controlplane.slurm.protocol import SlurmUnavailable
from understudy_controlplane.store import tables
from understudy_wire.facts import HardwareEvent, HardwareKind, KernelEvent
from understudy_wire.hardware import Part, PartKind

pytestmark = pytest.mark.integration


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL that runs in the block."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_a_look_at_a_changed_fleet_writes_nothing_and_returns_what_to_record(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    observer = plane.loop.observer
    plane.telemetry.receive(b.report("n1", gpus=[b.gpu(0, uuid="GPU-new")]), rehearsal.fake.now)
    rehearsal.line.effects.clear()
    with statements() as found:
        view = observer.read_slurm(0.0)
        seen: Observation = observer.look(view)
    assert view is not None
    assert {one.split(maxsplit=1)[0] for one in found} <= {"SELECT", "BEGIN"}
    assert any(one.startswith("SELECT") for one in found)
    assert not rehearsal.line.effects
    assert [gpu.uuid for gpu in seen.gpus_due["n1"]] == ["GPU-new"]


def test_a_node_may_be_out_since_the_reading_before_the_one_that_shows_it(tmp_path: Path) -> None:
    """slurmctld may have been away in between."""
    rehearsal = Rehearsal(tmp_path)
    observer = rehearsal.control_plane.loop.observer

    def look() -> float | None:
        return observer.look(observer.read_slurm(0.0)).snapshot.nodes["n5"].out_since

    assert look() is None
    before = rehearsal.clock.now()
    rehearsal.fake.advance(100)
    rehearsal.fake.drain_by("alice", "n5", "odd")
    assert look() == before
    rehearsal.fake.advance(100)
    assert look() == before


def test_slurm_is_silent_about_a_node_since_the_first_reading_that_shows_it(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    observer = rehearsal.control_plane.loop.observer

    def look() -> float | None:
        return observer.look(observer.read_slurm(0.0)).snapshot.nodes["n5"].slurm_silent_since

    assert look() is None
    rehearsal.fake.advance(100)
    rehearsal.fake.miss_ping("n5", 60)
    first = rehearsal.clock.now()
    assert look() == first
    rehearsal.fake.advance(50)
    assert look() == first
    rehearsal.fake.advance(50)
    assert look() is None, "it was heard again"


def _refuse() -> NoReturn:
    raise SlurmUnavailable("it did not end in time")


def test_what_slurm_showed_before_a_restart_or_a_time_in_which_it_was_away_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld may have asked no node meanwhile, and shows one missed answer for as long as it has not."""
    rehearsal = Rehearsal(tmp_path)
    observer = rehearsal.control_plane.loop.observer

    def look() -> float | None:
        return observer.look(observer.read_slurm(0.0)).snapshot.nodes["n5"].slurm_silent_since

    rehearsal.fake.miss_ping("n5", 600)
    assert look() == rehearsal.clock.now()
    rehearsal.fake.advance(1)
    rehearsal.fake.crash(rehearsal.fake.saved_state())
    again = rehearsal.clock.now()
    assert look() == again

    def look_after_a_reading_that_fails(seconds: float) -> float | None:
        with monkeypatch.context() as patched:
            patched.setattr(rehearsal.fake, "nodes", _refuse)
            assert observer.read_slurm(0.0) is None
        rehearsal.fake.advance(seconds)
        return look()

    assert look_after_a_reading_that_fails(11) == again, "one may"
    assert look_after_a_reading_that_fails(120) == again + 131
    rehearsal.fake.advance(120)
    assert look() == again + 131, "none was tried: it was not Slurm that was away"


def test_a_tick_records_what_the_look_returned(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    plane.telemetry.receive(b.report("n1", gpus=[b.gpu(0, uuid="GPU-new")]), rehearsal.fake.now)
    plane.loop.look(0.0)
    assert ("GPU-new", "n1") in {(one["uuid"], one["node"]) for one in plane.stores.gpus.gpus(100)}


def test_parts_are_recorded_when_they_change_and_hourly_and_not_of_the_boot_before(tmp_path: Path) -> None:
    """A board or card may be exchanged while its node is off."""
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane

    def hear(boot_id: str, *cards: str) -> None:
        parts = [Part(PartKind.CARD, f"mlx5_{i}", serial=serial) for i, serial in enumerate(cards)]
        plane.telemetry.receive(b.report("n1", boot_id=boot_id, parts=parts), rehearsal.fake.now)
        plane.loop.look(0.0)

    def recorded() -> dict[str, float]:
        found = plane.stores.parts.places(10, node="n1")
        return {one["identity"]: round(one["last_seen_at"] - begun) for one in found}

    begun = rehearsal.clock.now()
    hear("boot 1", "MT1", "MT2")
    assert recorded() == {"MT1": 0, "MT2": 0}
    rehearsal.fake.advance(600)
    hear("boot 1")
    assert recorded() == {"MT1": 0, "MT2": 0}
    rehearsal.fake.advance(3600)
    hear("boot 1")
    assert recorded() == {"MT1": 4200, "MT2": 4200}, "they are still there, though this report has none"
    rehearsal.fake.advance(3700)
    hear("boot 2")
    assert recorded() == {"MT1": 4200, "MT2": 4200}, "what is there after a boot is not known yet"
    hear("boot 2", "MT1", "MT9")
    assert recorded() == {"MT1": 7900, "MT2": 4200, "MT9": 7900}


def test_a_reading_of_slurm_that_shows_the_same_jobs_asks_the_database_for_no_attempts(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.run(5)
    loop = rehearsal.control_plane.loop
    with statements() as quiet:
        loop.look(0.0)
    rehearsal.fake.cancel(rehearsal.gang)
    with statements() as ended:
        loop.look(0.0)
    assert not [one for one in quiet if " attempt " in one and "ended_at" in one]
    assert [one for one in ended if one.startswith("UPDATE attempt SET ended_at")]


def test_a_restarted_gang_whose_ranks_do_not_report_is_seen_where_they_did_before(tmp_path: Path) -> None:
    """A gang without a hook looks the same otherwise, and is left alone."""
    rehearsal = Rehearsal(tmp_path)
    plane, fake = rehearsal.control_plane, rehearsal.fake
    observer = plane.loop.observer
    fake.cancel(rehearsal.hungry)  # it would take the nodes

    def restart() -> Snapshot:
        count = rehearsal.gang_state()[1]
        fake.requeue_job(rehearsal.gang)
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", count + 1), 200)
        return observer.look(observer.read_slurm(0.0)).snapshot

    assert restart().progress.unheard_gangs == {}, "its ranks never reported"
    known = plane.stores.fleet.known_jobs(b.CLUSTER, [rehearsal.gang])[rehearsal.gang]
    plane.stores.fleet.note_progress({(known.row, Attempt(1)): Reached(10, fake.now)})
    seen = restart()
    assert seen.progress.tables == {}
    assert list(seen.progress.unheard_gangs) == [known.key]
    with statements() as again:
        observer.look(None)
    assert not [one for one in again if "last_step" in one], "what was before a restart is looked up once"
    fake.advance(700)
    fake.suspend(rehearsal.gang)
    fake.go_on(rehearsal.gang)
    resumed = observer.look(observer.read_slurm(0.0)).snapshot
    assert resumed.progress.unheard_gangs == {known.key: int(fake.now)}, "its ranks had to wait for that"


def test_a_gang_in_its_first_launch_is_seen_where_its_ranks_do_not_report_to_a_control_plane_that_was_restarted(
    tmp_path: Path,
) -> None:
    rehearsal = Rehearsal(tmp_path)
    known = rehearsal.control_plane.stores.fleet.known_jobs(b.CLUSTER, [rehearsal.gang])[rehearsal.gang]
    rehearsal.control_plane.stores.fleet.note_progress({(known.row, Attempt(0)): Reached(10, rehearsal.fake.now)})
    rehearsal.restart_control_plane()
    rehearsal.run(3)
    assert list(rehearsal.control_plane.loop.observer.look(None).snapshot.progress.unheard_gangs) == [known.key]
    rehearsal.run(1900)
    needs = {one.key: one for one in rehearsal.control_plane.loop.pulse.needs}
    need = needs[f"gang_unheard job {rehearsal.gang}"]
    assert need.is_due(rehearsal.clock.now())
    assert need.page_seconds is None, "its training may be over"


def test_what_the_kernel_logged_before_a_node_had_an_agent_is_history(tmp_path: Path) -> None:
    """The first agent reads the whole log of a node that has run for weeks."""
    rehearsal = Rehearsal(tmp_path)

    def logged(ago: float, sequence: int) -> None:
        old = b.xid_event("n2", 79, rehearsal.clock.now() - ago, sequence, "boot of n2").event
        rehearsal.control_plane.stores.facts.record("n2", [old], rehearsal.clock.now(), lambda _: None)

    engine = rehearsal.control_plane.stores.engine
    first = rehearsal.control_plane.stores.fleet.nodes()["n2"].agent_since
    assert first == pytest.approx(b.NOW - 100), "as its first report had it"
    with engine.begin() as connection:
        of_n2 = tables.node.c.name == "n2"
        connection.execute(update(tables.node).where(of_n2).values(agent_since=rehearsal.clock.now() - 60))
    logged(14 * 86_400, 1)
    rehearsal.run(5)
    rehearsal.restart_control_plane()
    rehearsal.run(5)
    assert rehearsal.state_of("n2") is NodeState.IN_SERVICE
    logged(0.5, 2)
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.QUARANTINED)


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_a_fault_of_a_new_node_counts_however_wrong_its_clock_is(tmp_path: Path, ahead: float) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane, now = rehearsal.control_plane, rehearsal.clock.now()
    observer = plane.loop.observer
    with plane.stores.engine.begin() as connection:
        connection.execute(update(tables.node).where(tables.node.c.name == "n2").values(agent_since=now - 30))
    heard = b.report("n2", boot_id="boot of n2", sent_at=now + ahead, agent_started_at=now + ahead - 30)
    plane.telemetry.receive(heard, now)
    for sequence, ago in ((1, 3600.0), (2, 5.0)):
        event = b.xid_event("n2", 79, now + ahead - ago, sequence, "boot of n2").event
        plane.stores.facts.record("n2", [event], now, lambda _: None)
    node = observer.look(observer.read_slurm(0.0)).snapshot.nodes["n2"]
    assert [one.event.sequence for one in node.events] == [2]


def test_a_line_of_a_gpu_counts_on_no_node_that_has_none(tmp_path: Path) -> None:
    """Two containers on one host read the same kernel log."""
    rehearsal = Rehearsal(tmp_path)
    observer = rehearsal.control_plane.loop.observer
    view = observer.read_slurm(0.0)
    assert view is not None
    without = replace(view, nodes={**view.nodes, "n2": replace(view.nodes["n2"], gres="")})
    lost = KernelEvent("boot of n2", 1, rehearsal.clock.now(), "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.")
    disk = KernelEvent("boot of n2", 2, rehearsal.clock.now(), "nvme nvme0: Disabling device after reset failure: -19")
    rehearsal.control_plane.stores.facts.record("n2", [lost, disk], rehearsal.clock.now(), lambda _: None)

    def counted(shown: SlurmView, **report: Any) -> list[int]:
        now = rehearsal.clock.now()
        heard = b.report("n2", boot_id="boot of n2", sent_at=now, **report)
        rehearsal.control_plane.telemetry.receive(heard, now)
        return [one.event.sequence for one in observer.look(shown).snapshot.nodes["n2"].events]

    assert counted(without, gpus=[]) == [2]
    assert counted(view, gpus=[]) == [1, 2], "Slurm counts its GPUs"
    assert counted(without, gpus=[], driver_version="570.1") == [1, 2], "there is a driver"
    assert counted(without) == [1, 2], "it has GPUs"
    nowhere = replace(view, nodes={name: replace(one, gres="") for name, one in view.nodes.items()})
    assert counted(nowhere, gpus=[]) == [1, 2], "Slurm counts no GPUs at all on this cluster"


def test_the_view_of_a_node_of_which_nothing_has_changed_stays(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    observer = plane.loop.observer

    def look() -> Snapshot:
        return observer.look(observer.read_slurm(0.0)).snapshot

    first = look()
    rehearsal.fake.advance(0.1)
    second = look()
    assert all(second.nodes[name] is node for name, node in first.nodes.items()), "though Slurm was read again"
    plane.telemetry.receive(b.report("n1"), rehearsal.clock.now())
    plane.stores.fleet.settled("n2")
    rehearsal.fake.drain_node("n3", "a person's")
    rehearsal.fail("n4")
    rehearsal.fake.advance(0.1)
    third = look()
    assert [name for name, node in third.nodes.items() if node is not second.nodes[name]] == ["n1", "n2", "n3", "n4"]


def test_a_node_is_usual_by_its_report_and_by_what_slurm_and_its_events_show(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    view = plane.loop.observer.read_slurm(0.0)
    assert view is not None
    gpus = [b.gpu(0)]

    def unusual(gres: str = "gpu:h100:1", **report: Any) -> bool:
        now = rehearsal.clock.now()
        heard = b.report("n2", boot_id="boot of n2", sent_at=now, **{"gpus": gpus, **report})
        plane.telemetry.receive(heard, now)
        shown = replace(view, nodes={**view.nodes, "n2": replace(view.nodes["n2"], gres=gres)})
        snapshot = plane.loop.observer.look(shown).snapshot
        return snapshot.nodes["n2"] in snapshot.unusual

    assert not unusual()
    assert unusual(host_silent_seconds=31.0)
    assert unusual("gpu:h100:2"), "a GPU is missing"
    flap = HardwareEvent("boot of n2", rehearsal.clock.now(), HardwareKind.PORT_OUTAGE, "mlx5_0/1")
    plane.stores.facts.record("n2", [flap], rehearsal.clock.now(), lambda _: None)
    assert unusual()


def test_gpus_are_awaited_from_an_agent_that_starts_and_not_from_one_that_reads_none(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane, now = rehearsal.control_plane, rehearsal.clock.now()
    view = plane.loop.observer.read_slurm(0.0)

    def awaited(age: float, **report: Any) -> bool:
        boot = {"boot_id": "boot of n2", "driver_version": "", "sent_at": now, "agent_started_at": now - age}
        plane.telemetry.receive(b.report("n2", **{**boot, **report}), now)
        return plane.loop.observer.look(view).snapshot.nodes["n2"].gpus_awaited

    assert awaited(2.0, gpus=[])
    assert not awaited(31.0, gpus=[]), "its configuration disables NVML"
    assert not awaited(2.0, gpus=[], nvml_silent_seconds=1.0), "NVML is being asked: how many there are is uncertain"
    assert not awaited(2.0, gpus=[b.gpu(0)])
