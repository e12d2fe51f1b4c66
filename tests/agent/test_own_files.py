"""Modes do not depend on the umask, and what another user has put in the way is not used."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_agent.export import export
from understudy_agent.facts import FactQueue
from understudy_agent.hooks.verdict import VerdictFile
from understudy_agent.own_files import append_to_file, make_directory, read_file, replace_file
from understudy_agent.ranks import RankServer
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.step_windows import WindowBuffer
from understudy_agent.uplink import RestorePointRequest
from understudy_wire.messages import RestorePoint


@pytest.fixture(params=[0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def no_restore_point(request: RestorePointRequest) -> RestorePoint:
    return RestorePoint(request.job_id, request.restart_count, 0, "")


def server(path: Path) -> RankServer:
    return RankServer(path, FactQueue(), WindowBuffer(), no_restore_point, lambda: None)


def test_ranks_of_every_user_reach_the_socket_under_any_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "run" / "understudy" / "agent.sock"

    async def run() -> None:
        ranks = server(path)
        await ranks.start()
        assert [mode(one) for one in (path, path.parent, path.parent.parent)] == [0o666, 0o755, 0o755]
        await ranks.stop()

    asyncio.run(run())


def test_files_have_the_same_mode_under_any_umask(tmp_path: Path, umask: int) -> None:
    run = tmp_path / "run"
    VerdictFile(run / "verdict").note("")
    history = HardwareHistory(run / "hardware.json", "boot")
    history.seen.mounted.append("/scratch")
    history.save()
    append_to_file(run / "appended", b"x")
    make_directory(run / "hooks", 0o700)
    export(tmp_path / "export")
    found = {one.name: mode(one) for one in (run, *run.iterdir())}
    assert found == {"run": 0o755, "verdict": 0o644, "hardware.json": 0o600, "appended": 0o600, "hooks": 0o700}
    assert {mode(one) for one in (tmp_path / "export", tmp_path / "export" / "understudy")} == {0o755}


def test_links_are_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_bytes(b"precious")
    link.symlink_to(victim)
    for use in (lambda: read_file(link), lambda: append_to_file(link, b"x")):
        with pytest.raises(OSError, match="symbolic"):
            use()
    (tmp_path / ".target.new").symlink_to(victim)
    replace_file(tmp_path / "target", b"new")
    replace_file(link, b"new")
    assert (victim.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"precious", b"new", False)
    (tmp_path / "there").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match="is a symbolic link; name its target"):
        make_directory(tmp_path / "elsewhere")
    (tmp_path / "agent.sock").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match=r"agent\.sock is a symbolic link"):
        asyncio.run(server(tmp_path / "agent.sock").start())


def test_a_directory_in_which_others_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OSError, match="other users can write"):
        make_directory(tmp_path / "open")
    (tmp_path / "open").chmod(0o1777)
    make_directory(tmp_path / "open")


def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "run").mkdir()
    for name in ("file", "run"):
        os.chown(tmp_path / name, 1000, 1000)
    for use in (
        lambda: read_file(tmp_path / "file"),
        lambda: append_to_file(tmp_path / "file", b"y"),
        lambda: make_directory(tmp_path / "run"),
    ):
        with pytest.raises(OSError, match="belongs to user 1000"):
            use()
    os.chown(tmp_path / "run", 0, 1000)
    (tmp_path / "run").chmod(0o775)
    with pytest.raises(OSError, match="other users can write"):
        make_directory(tmp_path / "run")
