"""What ranks fetched is removed when its job is gone for good, as its owner, and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from understudy_agent.files import fetched as fetched_module
from understudy_agent.files.fetched import BACK_WITHIN_SECONDS, PROGRAM, REMOVED_OF_USER_MAX, FetchedCheckpoints, remove
from understudy_agent.files.rights import MEMORY_BYTES_MAX

OWNER, STRANGER = 33, 34
"""www-data and backup, which every Debian has."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder like /tmp."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def fetch(folder: Path, user: int, job: int, owner: int | None = None) -> Path:
    place = folder / f"understudy-{user}-{job}"
    (place / "step-20").mkdir(parents=True)
    (place / "step-20" / "r0").write_bytes(b"weights")
    for one in (place, place / "step-20", place / "step-20" / "r0"):
        os.chown(one, user if owner is None else owner, 0)
    place.chmod(0o700)
    return place


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_only_what_jobs_that_do_not_come_back_have_fetched_is_removed_and_only_by_its_owner(folder: Path) -> None:
    back = {8}
    fetched = FetchedCheckpoints(lambda job: job in back, folder)
    secret = fetch(folder, STRANGER, 5)
    gone = fetch(folder, OWNER, 7)
    (gone / "link").symlink_to(secret)
    kept = {fetch(folder, OWNER, 8), fetch(folder, OWNER, 9), fetch(folder, OWNER, 70), fetch(folder, 0, 7), secret}
    kept.add(fetch(folder, STRANGER, 7, owner=OWNER))  # it says that it is another user's
    kept.add(folder / f"understudy-{STRANGER}-8")
    (folder / f"understudy-{STRANGER}-8").symlink_to(secret)
    for job in (7, 8):
        fetched.note_gone(job, 100.0)
    fetched.note_gone(9, 200.0)
    asyncio.run(fetched.remove_due(100.0 + BACK_WITHIN_SECONDS - 1))
    assert gone.exists()
    asyncio.run(fetched.remove_due(100.0 + BACK_WITHIN_SECONDS))
    assert names(folder) == {one.name for one in kept}
    assert (secret / "step-20" / "r0").exists()
    back.clear()
    asyncio.run(fetched.remove_due(100.0 + 10 * BACK_WITHIN_SECONDS))
    assert names(folder) == {one.name for one in kept} - {f"understudy-{OWNER}-9"}, "job 8 has come back"


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_the_record_of_the_epilog_has_the_agent_remove_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(fetched_module, "BACK_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(fetched_module, "LOOK_SECONDS", 0.05)
    fetch(folder, OWNER, 7)
    fetch(folder, OWNER, 6).rename(folder / f"understudy-{OWNER}-6.removed")  # an agent was ended then
    with FakeControlPlane() as plane, running_agent(agent_config(tmp_path, plane.url)):
        hooks = tmp_path / "run" / "hooks"
        hooks.mkdir(parents=True, exist_ok=True)
        (hooks / ".unfinished").write_text("gone 7 0 1732200000\n")
        (hooks / ".unfinished").rename(hooks / "gone.7.1.1")
        until = time.monotonic() + 60
        while names(folder) and time.monotonic() < until:
            time.sleep(0.05)
    assert names(folder) == set()


def test_what_others_put_into_the_folder_hides_nothing_and_is_not_kept() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # where many files cost little
        for number in range(11_000):
            os.mknod(f"{name}/understudy-{number}")
        place = fetch(Path(name), user, 7)
        fetched = FetchedCheckpoints(lambda _: False, Path(name))
        tracemalloc.start()
        try:
            assert list(fetched._of_jobs({7})) == [(user, place)]
            assert tracemalloc.get_traced_memory()[1] < 1 << 17
        finally:
            tracemalloc.stop()


def test_a_user_has_few_removals_gone_on_with_at_a_time(folder: Path) -> None:
    user = os.geteuid()
    for number in range(REMOVED_OF_USER_MAX + 5):
        (folder / f"understudy-{user}-{number}.removed").mkdir()
    for name in ("7", "07", "007"):
        (folder / f"understudy-{user}-{name}").mkdir()
    found = [path.name for _, path in FetchedCheckpoints(lambda _: False, folder)._of_jobs({7})]
    assert len(found) == REMOVED_OF_USER_MAX + 1
    assert f"understudy-{user}-7" in found


def test_a_removal_that_was_broken_off_is_gone_on_with(folder: Path) -> None:
    user = os.geteuid()
    place = fetch(folder, user, 7)
    place.rename(folder / f"{place.name}.removed")
    place = fetch(folder, user, 7)
    remove(place)
    assert names(folder) == set()


def test_no_link_is_removed_or_followed(folder: Path) -> None:
    other = fetch(folder, os.geteuid(), 7)
    link = folder / f"understudy-{os.geteuid()}-8"
    link.symlink_to(other)
    with pytest.raises(FileNotFoundError):
        remove(link)
    assert (other / "step-20" / "r0").exists()


def test_an_agent_starts_where_no_folder_for_temporary_files_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full, which the agent is to report."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    FetchedCheckpoints(lambda _: False)


@pytest.mark.integration
def test_what_removes_a_folder_of_a_user_has_bounded_memory_and_ends_before_the_agent(folder: Path) -> None:
    place = fetch(folder, os.geteuid(), 7)
    own = "; print(resource.getrlimit(resource.RLIMIT_AS)[0], open('/proc/self/oom_score_adj').read())"
    command = [sys.executable, "-I", "-c", f"import resource; {PROGRAM}{own}", str(place)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(MEMORY_BYTES_MAX), "1000"]
    assert names(folder) == set()
