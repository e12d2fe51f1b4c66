"""Facts that the control plane has not acknowledged survive a restart of the agent."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from understudy_agent.spool import Spool
from understudy_wire.facts import Anomaly, AnomalyKind, Fact, KernelEvent


def kernel_event(sequence: int) -> KernelEvent:
    return KernelEvent("boot", sequence, 1.5, "NVRM: Xid (PCI:0000:61:00): 79", 79, "0000:61:00.0")


def anomaly(step: int) -> Anomaly:
    return Anomaly(1, 0, 0, 4, AnomalyKind.LOSS_JUMP, step, 0.0, user_id=1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "facts.spool"


def test_what_waits_is_there_for_the_next_agent(path: Path) -> None:
    spool = Spool(path)
    assert spool.load() == []
    spool.keep([kernel_event(1)])
    spool.keep([kernel_event(1), kernel_event(2), anomaly(3)])
    again = Spool(path)
    assert again.load() == [kernel_event(1), kernel_event(2), anomaly(3)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again.keep([])
    assert not path.exists()
    assert (again.empty, again.problems()) == (True, [])


def test_a_line_that_was_not_finished_is_ignored_and_the_rest_kept(path: Path) -> None:
    Spool(path).keep([kernel_event(1)])
    with path.open("ab") as file:
        file.write(b'{"type":"kernel","bo')
    spool = Spool(path)
    assert (spool.load(), spool.problems()) == ([kernel_event(1)], [])
    spool.keep([kernel_event(1), kernel_event(2)])
    assert Spool(path).load() == [kernel_event(1), kernel_event(2)]


@pytest.mark.parametrize("garbage", [b"\xff\xfe\n", b"{}\n", b"[" * 5000 + b"\n", b"\0" * 512 + b"\n"])
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_used(path: Path, garbage: bytes) -> None:
    Spool(path).keep([kernel_event(1)])
    path.write_bytes(garbage + path.read_bytes())
    spool = Spool(path)
    assert spool.load() == [kernel_event(1)]
    assert "1 of 2 lines cannot be read; it is now" in spool.problems()[0]
    assert [one.name for one in path.parent.iterdir()] == ["facts.spool.unreadable"]
    spool.keep([kernel_event(1)])
    assert Spool(path).load() == [kernel_event(1)]


def test_a_users_flood_leaves_room_for_the_hardware_and_the_file_stays_small(path: Path) -> None:
    spool, waiting = Spool(path, bytes_max=4000), list[Fact]()
    for step in range(200):
        waiting.append(anomaly(step))
        spool.keep(waiting)
    assert path.stat().st_size <= 2000
    waiting = [kernel_event(1), *waiting]
    spool.keep(waiting)
    assert path.stat().st_size <= 4000
    assert kernel_event(1) in Spool(path).load()


def test_what_was_acknowledged_meanwhile_makes_room(path: Path) -> None:
    spool = Spool(path, bytes_max=1000)
    for sequence in range(100):
        spool.keep([kernel_event(sequence)])
        assert path.stat().st_size <= 1000
        assert kernel_event(sequence) in Spool(path).load()


def test_a_full_disk_is_a_problem_and_no_crash_and_passes(path: Path) -> None:
    spool = Spool(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        spool.keep([kernel_event(1), kernel_event(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "facts that wait cannot be written" in spool.problems()[0]
    assert path.read_bytes() == b""
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    spool.keep([kernel_event(1)])
    assert "a restart of the agent loses them" in spool.problems()[0]
    path.parent.unlink()
    spool.keep([kernel_event(1)])
    assert (spool.problems(), Spool(path).load()) == ([], [kernel_event(1)])


def test_a_link_and_a_file_of_another_user_are_set_aside(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    spool = Spool(path)
    assert spool.load() == []
    assert "facts.spool" in spool.problems()[0]
    spool.keep([kernel_event(1)])
    assert victim.read_bytes() == b"precious"
    os.chown(path, 1000, 1000)
    foreign = Spool(path)
    assert foreign.load() == []
    assert "belongs to user 1000" in foreign.problems()[0]
