"""`understudy analyze hang`: who held up a gang, from the files of PyTorch's flight recorder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import REPOSITORY
from understudy_controlplane.cli.analyze import recorder_files
from understudy_controlplane.cli.analyze.recorder_files import RecorderFileError, analyze_hang, read
from understudy_controlplane.cli.main import root
from understudy_controlplane.detect.hang_verdict import Cause

WORLD = REPOSITORY / "tests/data/world/training"
PICKLED, AS_JSON = WORLD / "recorder_files", WORLD / "recorder_files_json"


def run(*paths: Path) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["analyze", "hang", *map(str, paths)], env={"COLUMNS": "400"})
    return result.exit_code, result.output


@pytest.mark.parametrize("folder", [PICKLED, AS_JSON])
def test_the_rank_that_did_not_enter_is_named_from_what_pytorch_wrote(folder: Path) -> None:
    found = analyze_hang([folder])
    assert (found.verdict.cause, found.verdict.ranks, found.ranks) == (Cause.NOT_ENTERED, (2,), 3)
    assert found.verdict.suspects == ()


def test_the_command_names_it_in_a_sentence_and_in_json() -> None:
    code, output = run(PICKLED)
    assert code == 0
    assert "rank 2 did not enter the collective of group 0:default_pg in which the others wait" in output
    result = CliRunner().invoke(root, ["analyze", "hang", "--json", str(PICKLED)])
    assert json.loads(result.output)["ranks"] == [2]


def entry(number: int, state: str = "completed", **more: object) -> dict[str, Any]:
    content = {
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[64]],
        "input_dtypes": ["Float"],
        "output_sizes": [[64]],
        "output_dtypes": ["Float"],
        "state": state,
        "is_p2p": False,
    }
    return content | more


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.10", "pg_config": config, "entries": [*entries]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """NCCL's entries as the source has them: rank 3 has not entered the third collective."""
    for rank in range(4):
        last = [] if rank == 3 else [entry(3, "started")]
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump(entry(1), entry(2), *last), protocol=2))
    return tmp_path


def test_ranks_without_a_file_are_named(folder: Path) -> None:
    assert analyze_hang([folder]).verdict.ranks == (3,)
    (folder / "trace_3").unlink()
    code, output = run(folder)
    assert code == 0
    assert "no file of rank 3: the process may have ended" in output
    assert "some of its ranks do not show their collectives" in output


class Calls:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/never",)


def bad_files() -> Iterator[tuple[bytes, str]]:
    yield pickle.dumps(Calls()), "it names posix.system"
    yield pickle.dumps(dump(entry(1) | {"state": Path("x")})), "it names"
    yield b"", "no file of PyTorch's"
    yield b"{", "no file of PyTorch's"
    yield b"[1, 2]", "no file of PyTorch's"
    yield pickle.dumps([1, 2]), "no file of PyTorch's"
    yield pickle.dumps({"entries": 7}), "no file of PyTorch's"
    yield b'{"entries":' + b"[" * 100_000, "no file of PyTorch's"
    yield b"\x80\x02]r\xff\xff\xff\x00.", "no file of PyTorch's"
    yield b"(lp99999999\n.", "no file of PyTorch's"
    yield b"\x80\x02\x8e" + b"\xff" * 8, "no file of PyTorch's"
    yield b"\x80\x02" + b"(" * 1000, "no file of PyTorch's"


def nested(bottom: Any, make: Callable[[Any], Any], levels: int = 40) -> Any:
    return nested(make(bottom), make, levels - 1) if levels else bottom


def shared(protocol: int) -> Iterator[tuple[bytes, str]]:
    """Files of a few hundred bytes that would take for ever."""
    again = "the same lists again and again"
    lists, maps = nested([64], lambda one: [one, one]), nested({}, lambda one: {"a": one, "b": one})
    for field in ("input_sizes", "process_group", "profiling_name"):
        yield pickle.dumps(dump(entry(1) | {field: lists}), protocol), again
    yield pickle.dumps(dump(entry(1)) | {"pg_config": {"0": {"ranks": maps}}}, protocol), again
    itself: list[Any] = []
    itself += [itself, itself]
    yield pickle.dumps(dump(entry(1) | {"input_sizes": itself}), protocol), again
    yield pickle.dumps(dump(entry(1) | {"input_sizes": ["x" * 10_000] * 1000}), protocol), again


def as_keys() -> Iterator[bytes]:
    """A key is hashed while the file is loaded."""
    yield b"\x80\x02})" + b"2\x86" * 60 + b"Ns."
    for get in (b"q\x00h\x00", b"\x94h\x00", b"N0q\x00h\x00", b"q\x01q\x00h\x00", b"(1q\x00h\x00"):
        yield b"\x80\x04})" + (get + b"\x86") * 60 + b"Ns."
    yield b"\x80\x04}(" + b"(\x91" * 60 + b"\x90."


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("content", "words"), [*bad_files(), *shared(2), *shared(4), *((one, "no file of") for one in as_keys())]
)
def test_a_file_of_something_else_is_refused_and_runs_nothing(folder: Path, content: bytes, words: str) -> None:
    (folder / "trace_1").write_bytes(content)
    code, output = run(folder)
    assert code == 2
    assert words in output and "trace_1" in output


@pytest.mark.parametrize("protocol", [2, 4])
def test_texts_and_stacks_that_entries_share_are_read(folder: Path, protocol: int) -> None:
    """PyTorch shares both where stack traces are on."""
    stack = [{"name": "step", "filename": "/opt/train.py", "line": line} for line in range(20)]
    for rank in range(4):
        entries = [entry(number) | {"frames": stack} for number in range(2000 - (rank == 3))]
        content = pickle.loads(pickle.dumps(dump(*entries)))  # noqa: S301 - of this test
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(content, protocol))
    assert recorder_files.analyze_hang([folder]).ranks == 4


def test_names_in_a_file_move_no_cursor(folder: Path) -> None:
    (folder / "trace_1").write_bytes(b"c\x1b]0;x\x07\nname\x1b[2J\n.")
    with pytest.raises(RecorderFileError, match=r"it names  ]0;x .name") as refused:
        analyze_hang([folder])
    assert str(refused.value).isprintable()
    with pytest.raises(RecorderFileError) as refused:
        analyze_hang([folder / "\x1b[2J"])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("config", [[1], "text", 7, {"0": [1]}, {"0": {"ranks": [[1]]}}, {0: None}])
def test_a_configuration_of_another_type_leaves_the_rank_unknown_or_is_not_used(folder: Path, config: object) -> None:
    (folder / "trace_1").write_bytes(pickle.dumps(dump(entry(1)) | {"pg_config": config}, protocol=2))
    assert analyze_hang([folder]).ranks == 4


def test_entries_of_another_release_leave_the_rank_unknown(folder: Path) -> None:
    (folder / "trace_1").write_bytes(pickle.dumps(dump({"state": "completed"})))
    output = run(folder)[1]
    assert "the entries of rank 1 are not understood" in output
    assert "rank 3 did not enter" in output, "the others wait for it all the same"


def test_files_that_may_be_of_several_gangs_are_refused_or_noted(folder: Path) -> None:
    shutil.copy(folder / "trace_1", folder / "older_1")
    assert "files have several names" in run(folder)[1]
    assert run(*sorted(folder.glob("trace_*")))[0] == 0
    os.utime(folder / "trace_0", (1, 1))
    assert "they may be of several attempts" in run(*sorted(folder.glob("trace_*")))[1]
    shutil.copy(folder / "trace_1", folder / "trace_1.json")
    assert "are of the same rank" in run(*sorted(folder.glob("trace_*")))[1]


def test_what_is_not_there_or_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecorderFileError, match="does not exist"):
        analyze_hang([folder / "none"])
    (folder / "readme").write_text("x")
    with pytest.raises(RecorderFileError, match="number of a rank"):
        analyze_hang([folder / "readme"])
    monkeypatch.setattr(recorder_files, "BYTES_MAX", 10)
    with pytest.raises(RecorderFileError, match="more than 10 bytes"):
        read(folder / "trace_0")
