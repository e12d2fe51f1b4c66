"""File systems that checkpoints lie on, and the copy that a rank restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy import file_system
from understudy.restore import RestorePoint, nearest

MOUNTS = """\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
30 22 0:26 / /scratch rw shared:15 - lustre 10.0.0.1@tcp:/scratch rw
31 30 259:1 / /scratch/fast rw - xfs /dev/nvme0n1 rw
32 22 0:40 / /home rw shared:2 master:1 - nfs4 server:/home rw
33 22 0:41 / /odd\\040name rw - fuse.unknown odd rw
34 22 0:42 / /container rw - overlay overlay rw
35 22 0:43 / /covered rw - ext4 /dev/sdb rw
36 22 0:44 / /covered rw - nfs server:/covered rw
not a line of it
"""


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        ("/local/run", "local"),
        ("/scratch/run/step-1", "shared"),
        ("/scratch", "shared"),
        ("/scratchy", "local"),
        ("/scratch/fast/step-1", "local"),
        ("/home/a", "shared"),
        ("/odd name/a", ""),
        ("/container/a", ""),
        ("/covered/a", "shared"),
    ],
)
def test_the_file_system_says_who_sees_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, tier: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(file_system, "MOUNTS", str(mounts))
    assert file_system.tier_of(path) == tier


def test_where_the_system_does_not_say_it_it_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "MOUNTS", str(tmp_path / "none"))
    assert file_system.tier_of("/scratch") == ""


def test_a_rank_restores_its_own_copy_where_that_is_still_there(tmp_path: Path) -> None:
    shared = RestorePoint(40, "/shared/40")
    answer = {"nearer_path": str(tmp_path), "nearer_file": "2.pt"}
    assert nearest(shared, answer) == shared
    (tmp_path / "2.pt").write_bytes(b"weights")
    assert nearest(shared, answer) == RestorePoint(40, str(tmp_path))
    file = str(tmp_path / "2.pt")
    assert nearest(shared, {"nearer_path": file, "nearer_file": "."}) == RestorePoint(40, file), "the path is the file"
    assert nearest(shared, {}) == nearest(shared, {"nearer_path": "", "nearer_file": ""}) == shared


def test_a_full_file_system_is_named_and_not_what_failed_because_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system.full(tmp_path / "not" / "yet") == ""
    monkeypatch.setattr(file_system, "FULL_BYTES", 1 << 62)
    assert file_system.full(tmp_path / "not" / "yet").startswith(f"the file system of {tmp_path} is full: ")
