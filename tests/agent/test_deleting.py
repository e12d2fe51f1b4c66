"""Files of a checkpoint are deleted as their owner, and only those that were announced, as they were."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_file_tasks import OWNER, STRANGER, Saved, public, result_of
from understudy_wire.files import AnnouncedFile, DeleteFiles, FileOutcome

__all__ = ["public"]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    made = Saved(tmp_path)
    (made.path / ".metadata").unlink()
    return made


def look(saved: Saved) -> dict[str, str]:
    return saved.carry_out("delete", only_look=True)


def delete(saved: Saved) -> dict[str, str]:
    return saved.carry_out("delete", only_look=False)


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_first_it_is_looked_and_nothing_goes(saved: Saved) -> None:
    before = names(saved.path)
    assert look(saved) == {"outcome": "deletable", "why": ""}
    assert names(saved.path) == before
    assert delete(saved) == {"outcome": "deleted", "why": ""}
    assert not saved.path.exists()
    assert saved.path.parent.is_dir(), "the folder of the run is not the checkpoint's"
    assert delete(saved) == {"outcome": "deleted", "why": ""}, "an answer was lost"


def test_what_was_not_announced_stays_with_its_folder(saved: Saved) -> None:
    inner = saved.path / "optimizer"
    inner.mkdir()
    saved.add("optimizer/o.pt", b"12345", summed=False)
    (saved.path / "notes.txt").write_text("of the user")
    assert delete(saved)["outcome"] == "deleted"
    assert names(saved.path) == {"notes.txt"}


def pinned(saved: Saved) -> Any:
    (saved.path / ".keep").touch()


def written_again(saved: Saved) -> Any:
    os.utime(saved.path / "model.pt", (time.time() + 3600,) * 2)


def longer(saved: Saved) -> Any:
    (saved.path / "model.pt").write_bytes(b"another one")


def link(saved: Saved) -> Any:
    moved = saved.path.parent / "moved"
    (saved.path / "model.pt").rename(moved)
    (saved.path / "model.pt").symlink_to(moved)


def folder(saved: Saved) -> Any:
    (saved.path / "model.pt").unlink()
    (saved.path / "model.pt").mkdir()


@pytest.mark.parametrize("change", [pinned, written_again, longer, link, folder])
@pytest.mark.parametrize("begun", [False, True])
def test_all_of_it_stays_where_one_file_is_not_what_was_announced(saved: Saved, change: Any, begun: bool) -> None:
    change(saved)
    before = names(saved.path)
    found = delete(saved) if begun else look(saved)
    assert found["outcome"] in ("unseen", "suspect")
    assert found["why"]
    assert names(saved.path) == before


def test_what_is_lost_is_not_taken_for_deleted(saved: Saved) -> None:
    (saved.path / "model.pt").unlink()
    assert look(saved)["outcome"] == "lost"
    saved.path = saved.path.parent / "not-mounted" / "step-20"
    assert [look(saved)["outcome"], delete(saved)["outcome"]] == ["unseen", "unseen"]


def test_a_checkpoint_of_one_file_is_pinned_by_a_file_beside_it(saved: Saved) -> None:
    path = saved.path / "model.pt"
    saved.announced = [{**one, "file": "."} for one in saved.announced if one["file"] == "model.pt"]
    saved.path = path
    pin = path.with_name("model.pt.keep")
    pin.touch()
    assert delete(saved) == {"outcome": "unseen", "why": f"{pin} pins it"}
    pin.unlink()
    others = names(path.parent) - {"model.pt"}
    assert delete(saved)["outcome"] == "deleted"
    assert names(path.parent) == others


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_it_is_deleted_with_its_owners_rights_alone(public: Path) -> None:
    """A folder of which its owner may delete, with a file in it that belongs to another user."""
    run = public / "run" / "c"
    run.mkdir(parents=True)
    for name, owner in (("r0", OWNER), ("r1", STRANGER)):
        (run / name).write_bytes(b"12345")
        os.chown(run / name, owner, owner)
    for one in (run, run.parent):
        os.chown(one, OWNER, OWNER)
    assert asyncio.run(outcome(run, "r1", OWNER)) is FileOutcome.SUSPECT
    assert asyncio.run(outcome(run, "r0", STRANGER)) is FileOutcome.SUSPECT
    assert asyncio.run(outcome(run, "r0", 0)) is FileOutcome.UNSEEN
    assert names(run) == {"r0", "r1"}
    assert asyncio.run(outcome(run, "r0", OWNER)) is FileOutcome.DELETED
    assert names(run) == {"r1"}


async def outcome(path: Path, file: str, user_id: int) -> FileOutcome:
    files = [AnnouncedFile(file, 5, "", time.time())]
    return (await result_of(DeleteFiles(1, user_id, str(path), files, only_look=False))).outcome
