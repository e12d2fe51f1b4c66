"""The files between the agent and the hooks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.hooks.conftest import Hooks
from tests.agent.running_agent import agent_config, running_agent
from understudy_agent.facts import Settle
from understudy_agent.hooks import records
from understudy_agent.hooks.inotify import DirectoryWatch
from understudy_agent.hooks.records import LOG_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_AT_ONCE, HookRecords, JobGone
from understudy_agent.hooks.verdict import VerdictFile
from understudy_wire.facts import JobRefused

pytestmark = pytest.mark.integration


class RecordFolder:
    def __init__(self, run: Path) -> None:
        self.run = run
        self.facts: list[tuple[JobRefused, Settle]] = []
        self.gone: list[JobGone] = []
        self.records = HookRecords(run, lambda fact, settle: self.facts.append((fact, settle)), self.gone.append)
        self.records.look()

    def leave(self, name: str, content: str | bytes) -> Path:
        path = self.run / "hooks" / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def leave_as_a_hook(self, name: str, content: str) -> None:
        self.leave(f".{name}", content).rename(self.run / "hooks" / name)


@pytest.fixture
def folder(tmp_path: Path) -> RecordFolder:
    return RecordFolder(tmp_path / "run")


def test_a_refusal_is_a_fact_and_its_file_stays_until_the_control_plane_has_it(folder: RecordFolder) -> None:
    path = folder.leave("refused.7.1.1", "refused 7 2 1732200000 lost GPUs, all of them\n")
    folder.records.look()
    folder.records.look()
    [(fact, settle)] = folder.facts
    written_at = round(path.stat().st_mtime, 3)
    assert fact == JobRefused(7, written_at, "lost GPUs, all of them", 2)
    assert path.exists()
    settle(None)
    assert not path.exists()
    assert folder.records.problems() == []


def test_an_agent_that_restarts_sends_the_same_fact_again(folder: RecordFolder) -> None:
    folder.leave("refused.7.1.1", "refused 7 - 1732200000 unfit\n")
    folder.records.look()
    again = RecordFolder(folder.run)
    assert [fact for fact, _ in again.facts] == [fact for fact, _ in folder.facts]
    assert again.facts[0][0].restart_count is None


def test_a_job_that_left_is_reported_once(folder: RecordFolder) -> None:
    path = folder.leave("gone.7.1.1", "gone 7 0 1732200000\n")
    written_at = path.stat().st_mtime
    folder.records.look()
    folder.records.look()
    assert folder.gone == [JobGone(7, written_at)]
    assert not path.exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "refused",
        "refused 7 0 1\tx",
        "refused x 0 1732200000 unfit\n",
        "refused -7 0 1732200000 unfit\n",
        "refused 99999999999 0 1732200000 unfit\n",
        "refused 7 one 1732200000 unfit\n",
        "vanished 7 0 1732200000\n",
        b"\xff\xfe\x00\n",
        "refused 7 0 1732200000 " + "x" * RECORD_BYTES_MAX + "\n",
    ],
)
def test_a_malformed_record_is_removed_and_reported(folder: RecordFolder, content: str | bytes) -> None:
    path = folder.leave("refused.7.1.1", content)
    folder.records.look()
    assert not path.exists()
    assert (folder.facts, folder.gone) == ([], [])
    (problem,) = folder.records.problems()
    assert "refused.7.1.1" in problem


def test_anything_but_a_file_is_reported_and_does_no_harm(folder: RecordFolder) -> None:
    hooks = folder.run / "hooks"
    (hooks / "refused.1").mkdir()
    os.mkfifo(hooks / "refused.2")
    (hooks / "refused.3").symlink_to("/etc/passwd")
    folder.leave("refused.7.1.1", "refused 7 0 1732200000 unfit\n")
    for _ in range(3):
        folder.records.look()
    assert len(folder.facts) == 1
    assert "3 files" in folder.records.problems()[0]
    assert Path("/etc/passwd").exists()


def test_an_unfinished_record_of_a_killed_hook_is_removed_later(folder: RecordFolder) -> None:
    fresh = folder.leave(".refused.7.1", "refused 7 0 17322")
    old = folder.leave(".refused.8.1", "refused 8 0 17322")
    os.utime(old, (time.time() - 100, time.time() - 100))
    folder.records.look()
    assert fresh.exists()
    assert not old.exists()
    assert folder.facts == []


def test_many_records_are_read_in_parts(folder: RecordFolder) -> None:
    for number in range(RECORDS_AT_ONCE * 3):
        folder.leave(f"gone.{number}.1.1", f"gone {number} 0 1732200000\n")
    folder.records.look()
    assert len(folder.gone) == RECORDS_AT_ONCE
    for _ in range(5):
        folder.records.look()
    assert len(folder.gone) == RECORDS_AT_ONCE * 3


def test_the_hooks_log_is_rotated_before_it_is_full(folder: RecordFolder) -> None:
    log = folder.run / "hooks.log"
    log.write_text("x" * (LOG_BYTES_MAX + 1))
    folder.records.look()
    assert not log.exists()
    assert (folder.run / "hooks.log.old").exists()


@contextlib.asynccontextmanager
async def following(folder: RecordFolder) -> AsyncIterator[None]:
    task = asyncio.create_task(folder.records.follow())
    await asyncio.sleep(0.05)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def soon(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("not within five seconds")


def test_the_kernel_reports_a_record(folder: RecordFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "POLL_ANYWAY_SECONDS", 60.0)

    async def play() -> None:
        async with following(folder):
            folder.leave_as_a_hook("gone.1", "gone 1 0 1732200000\n")
            await soon(lambda: len(folder.gone) == 1)
            folder.leave_as_a_hook("gone.2", "gone 2 0 1732200000\n")
            await soon(lambda: len(folder.gone) == 2)

    asyncio.run(play())


def test_records_are_followed_into_a_new_directory(folder: RecordFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "POLL_ANYWAY_SECONDS", 60.0)

    async def play() -> None:
        async with following(folder):
            (folder.run / "hooks").rename(folder.run / "old")
            await soon((folder.run / "hooks").exists)
            await asyncio.sleep(2 * records.POLL_SECONDS)
            folder.leave_as_a_hook("gone.1", "gone 1 0 1732200000\n")
            await soon(lambda: folder.gone)

    asyncio.run(play())


def test_records_are_found_when_the_kernel_reports_nothing(
    folder: RecordFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "POLL_ANYWAY_SECONDS", 60.0)
    monkeypatch.setattr(DirectoryWatch, "open", lambda _: False)

    async def play() -> None:
        async with following(folder):
            folder.leave("gone.1", "gone 1 0 1732200000\n")
            await soon(lambda: folder.gone)

    asyncio.run(play())


def test_a_run_directory_that_cannot_be_created_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    folder = RecordFolder(tmp_path / "run")
    assert "cannot be read" in folder.records.problems()[0]
    verdict = VerdictFile(tmp_path / "run" / "verdict")
    verdict.note("")
    assert "cannot be written" in verdict.problems()[0]


def test_a_new_verdict_is_written_at_once_and_the_same_one_at_intervals(tmp_path: Path) -> None:
    now = [1000.9]
    path = tmp_path / "run" / "verdict"
    verdict = VerdictFile(path, lambda: now[0])
    verdict.note("")
    assert path.read_text() == "good 1000\n"
    now[0] += 1
    verdict.note("")
    assert path.read_text() == "good 1000\n"
    verdict.note("lost GPUs;\nall of ümlaut\0")
    assert path.read_text() == "bad 1001 lost GPUs; all of ?mlaut\n"
    now[0] += 2
    verdict.note("lost GPUs;\nall of ümlaut\0")
    assert path.read_text().startswith("bad 1003 ")
    now[0] -= 500  # the clock was set back
    verdict.note("lost GPUs;\nall of ümlaut\0")
    assert path.read_text().startswith("bad 503 ")
    assert [one.name for one in path.parent.iterdir()] == ["verdict"]


def test_the_verdict_reaches_the_prolog_and_its_refusal_the_control_plane(tmp_path: Path, hooks: Hooks) -> None:
    with FakeControlPlane() as plane:
        config = agent_config(tmp_path, plane.url)
        assert config.run_directory == hooks.run
        with running_agent(config):
            plane.wait_for(lambda _: hooks.call("prolog").returncode == 0 and (hooks.run / "verdict").exists())
            plane.unfit = "quarantined by row 10"
            plane.wait_for(lambda _: (hooks.run / "verdict").read_text().startswith("bad"))
            assert hooks.call("prolog").returncode == 1
            plane.wait_for(lambda plane: [fact for fact in plane.facts if isinstance(fact, JobRefused)])
            plane.wait_for(lambda _: hooks.records == [])
            (fact,) = {fact for fact in plane.facts if isinstance(fact, JobRefused)}
            assert (fact.job_id, fact.restart_count, fact.reason) == (7, 1, "quarantined by row 10")
            plane.stop()
            hooks.bad(age_seconds=32)  # no control plane confirms it any more
            assert hooks.call("prolog").returncode == 0
