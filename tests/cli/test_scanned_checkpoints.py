"""`understudy checkpoints scan`: folders as frameworks leave them, and folders that mean harm."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from understudy_controlplane.cli.scanned_checkpoints import NAMES_MAX, Scan, Scanned
from understudy_controlplane.fleet.checkpoint_folder import Folder, judge

WORLD = Path(__file__).parents[1] / "data" / "world" / "checkpoints"


def zipped(length: str) -> bytes:
    """A file such as torch.save writes since 1.6, or the beginning of it, or one with twice as much in it."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * (600 if length == "2x" else 200))
        archive.writestr("archive/version", "3\n")
    return made.getvalue()[: int(length) if length.isdecimal() else None]


def tensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(1024)


CONTENTS: dict[str, Callable[[str], bytes]] = {
    "zip": zipped,
    "tensors": lambda length: tensors()[: int(length or "2000")],
    "shards": lambda count: pickle.dumps([f"__{one}_0.distcp" for one in range(int(count))]),
    "json": str.encode,
    "text": str.encode,
    "zeros": lambda length: bytes(int(length)),
    "pickle": lambda _: pickle.dumps({"weights": 1}),
}


def expanded(path: str) -> Iterator[str]:
    """`{a,b}` and `{0..3}`, as a shell does it."""
    parts = [
        list(map(str, range(int(span[0]), int(span[1]) + 1)))
        if (span := re.findall(r"^(\d+)\.\.(\d+)$", part) and part.split(".."))
        else part.split(",")
        for part in re.split(r"[{}]", path)
    ]
    return map("".join, itertools.product(*parts))


def build(root: Path, tree: Path) -> Iterator[str]:
    """Makes the files that a tree describes. Lines of other kinds are returned."""
    for line in tree.read_text().splitlines():
        path, bar, content = line.partition(" | ")
        if line.startswith(("#", "=", "note", "limit")) or not bar:
            yield line
            continue
        for one in expanded(path):
            put(root / one, content)


def put(path: Path, content: str) -> None:
    kind, _, rest = content.partition(" ")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "gone":
        path.unlink()
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(rest)
    else:
        path.write_bytes(b"x" * int(kind) if kind.isdecimal() else CONTENTS[kind](rest))


def line_of(root: Path, one: Scanned) -> str:
    state = one.doubt or (f"not known: {one.unread}" if one.unread else "whole")
    step = "-" if one.step is None else one.step
    return f"= {step} | {os.path.relpath(one.path, root)} | {one.kind} | {state}"


@pytest.mark.parametrize("tree", sorted(WORLD.glob("*.tree")), ids=lambda tree: tree.stem)
def test_a_tree_of_the_world_is_judged_as_its_file_says(tree: Path, tmp_path: Path) -> None:
    lines = list(build(tmp_path, tree))
    limit = next((int(line.split()[1]) for line in lines if line.startswith("limit")), NAMES_MAX)
    scan = Scan(tmp_path, os.getuid(), names_max=limit)
    found = sorted(scan.checkpoints(), key=lambda one: (one.step is None, -(one.step or 0), one.path))
    notes = [f"note: {one}".replace(f"{tmp_path}: ", "").replace(f"{tmp_path}/", "") for one in scan.notes]
    assert [*(line_of(tmp_path, one) for one in found), *notes] == [x for x in lines if x.startswith(("=", "note"))]


def scanned(root: Path, **limits: float) -> tuple[list[Scanned], list[str]]:
    scan = Scan(root, os.getuid(), **limits)  # type: ignore[arg-type]
    return scan.checkpoints(), scan.notes


def test_a_folder_that_means_harm_costs_nothing(tmp_path: Path) -> None:
    """Loops, pipes, devices' names, deep and hostile names, numbers without an end, and JSON that is no index."""
    put(tmp_path / "step-1" / "model.safetensors", "tensors")
    (tmp_path / "step-1" / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "step-1" / "model.pt")
    os.mkfifo(tmp_path / "latest")
    put(tmp_path / "step-2\nstep 9, forged: whole" / "model.pt", "zip 60")
    put(tmp_path / os.fsdecode(b"step-3-\xff") / "model.pt", "zip")
    put(tmp_path / "step-4" / f"rank{'9' * 200}.pt", "zip")
    put(tmp_path / "step-4" / "rank_0_rank_999999999.pt", "zip")
    put(tmp_path / "step-4" / "rank_1_rank_0.pt", "zip")
    put(tmp_path / "step-4" / "1-of-2-of-3.pt", "zip")
    put(tmp_path / "step-4" / "model-1-of-999999999.pt", "zip")
    put(tmp_path / "step-5" / "model.safetensors.index.json", f"json {'[' * 100_000}")
    header = b'{"w": {"data_offsets": [0, 1e999]}}'
    (tmp_path / "step-8").mkdir()
    (tmp_path / "step-8" / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    put(tmp_path / "step-6" / "model.safetensors.index.json", 'json {"weight_map": {"a": "../../etc", "b": [1]}}')
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "model.safetensors").write_bytes(struct.pack("<Q", 99_000_000))
    os.truncate(tmp_path / "step-7" / "model.safetensors", 1 << 40)
    began = time.process_time()
    found, notes = scanned(tmp_path)
    assert time.process_time() - began < 5
    by_step = {one.step: (one.doubt, one.unread) for one in found}
    assert by_step[1] == ("", "")
    assert "cut" in by_step[2][0] and "missing" in by_step[4][0]
    assert by_step[3] == ("", "")
    assert by_step[5] == ("model.safetensors.index.json is not an index of shards", "")
    assert by_step[6] == ("../../etc and [1] are missing", "")
    assert by_step[7] == ("", "model.safetensors is not looked into: its header has more than 16 MiB")
    assert by_step[8] == ("a.safetensors is not whole: its header describes no tensors", "")
    assert notes == []
    assert "\udcff" not in "".join(one.path for one in found)


def test_a_tree_without_an_end_is_listed_to_a_depth(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(["a"] * 40))
    put(deep / "step-1" / "model.pt", "zip")
    put(tmp_path / "step-2" / "model.pt", "zip")
    found, notes = scanned(tmp_path)
    assert [one.step for one in found] == [2]
    assert len(notes) == 1 and "24 folders deep" in notes[0]


def test_bytes_and_time_are_bounded_and_what_was_not_looked_at_is_named(tmp_path: Path) -> None:
    put(tmp_path / "step-1" / "model.safetensors", "tensors")
    found, _ = scanned(tmp_path, read_bytes_max=50)
    assert found[0].unread == "model.safetensors is not looked into: 0 MiB were read"
    found, notes = scanned(tmp_path, seconds_max=-1)
    assert found == [] and "-1 seconds went by" in notes[0]


def test_a_checkpoint_with_a_very_deep_folder_hides_no_other(tmp_path: Path) -> None:
    put(tmp_path / "step-2" / "/".join("d" * 30) / "more.pt", "zip")
    for step in (1, 2):
        put(tmp_path / f"step-{step}" / "model.pt", "zip")
    found, notes = scanned(tmp_path)
    assert [one.step for one in found] == [2, 1]
    assert len(notes) == 1 and "24 folders deep" in notes[0]


def test_files_of_others_count_as_there_and_are_not_opened(tmp_path: Path) -> None:
    put(tmp_path / "step-1" / "model.safetensors", "tensors 20")
    put(tmp_path / "step-1" / "optimizer.pt", "zip")
    if os.getuid() == 0:
        os.chown(tmp_path / "step-1" / "model.safetensors", 12345, 12345)
        found, _ = scanned(tmp_path)
        assert found[0].doubt == ""
        assert found[0].unread == "model.safetensors is not looked into: it belongs to another user"
    assert Scan(tmp_path, os.getuid() + 1).checkpoints() == []


def test_of_several_runs_the_newest_of_each_come_first(tmp_path: Path) -> None:
    for run, step in itertools.product(("a", "b", "c"), range(1, 6)):
        put(tmp_path / run / f"step-{step}" / "model.pt", "zip")
    found, notes = scanned(tmp_path, names_max=3 + 15 + 6)
    assert [one.step for one in found].count(5) == 3 and len(found) == 6
    assert len(notes) == 1


def test_the_model_at_the_end_of_a_run_does_not_hide_its_checkpoints(tmp_path: Path) -> None:
    """Trainer.save_state() writes trainer_state.json into the run's own folder."""
    put(tmp_path / "trainer_state.json", "json {}")
    put(tmp_path / "model.safetensors", "tensors")
    put(tmp_path / "checkpoint-5" / "trainer_state.json", "json {}")
    put(tmp_path / "checkpoint-5" / "model.safetensors", "tensors 900")
    found, _ = scanned(tmp_path)
    assert [(one.step, bool(one.doubt), one.files) for one in found] == [(None, False, 2), (5, True, 2)]


def test_a_checkpoint_itself_is_judged_with_what_lies_beside_it(tmp_path: Path) -> None:
    put(tmp_path / "latest", "text global_step1")
    put(tmp_path / "global_step2" / "mp_rank_00_model_states.pt", "zip")
    found, _ = scanned(tmp_path / "global_step2")
    assert [one.doubt for one in found] == ["latest is still at step 1: it is written last"]


def test_the_files_of_many_ranks_are_judged_in_seconds() -> None:
    """A comparison of each with each would take minutes."""
    sizes = {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": 10 for rank in range(50_000) if rank != 777}
    sizes |= {"mp_rank_00_model_states.pt": 10, "rank1_" * 40: 10}
    began = time.process_time()
    judged = judge(Folder("global_step5", sizes, lambda _path, _at, _length: b"PK\3\4"))
    assert time.process_time() - began < 10
    assert judged.doubt.startswith("zero_pp_rank_777_mp_rank_00_optim_states.pt is missing; ")
