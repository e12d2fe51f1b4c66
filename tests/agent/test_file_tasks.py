"""Checkpoints that are damaged in many ways: none is taken for what was written."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import functools
import io
import json
import mmap
import os
import pickle
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import PYTHON_PATH, REPOSITORY
from understudy.program_files import pack
from understudy_agent.files import carry_out as carry_out_module
from understudy_agent.files import read
from understudy_agent.files.announced import Finding
from understudy_agent.files.carry_out import carry_out
from understudy_agent.files.read import NanLook, regions_of_safetensors
from understudy_agent.files.tasks import PROGRAM, FileTasks, in_own_unit, memory_is_limited
from understudy_agent.files.user_process import ENDS_SECONDS
from understudy_wire.checkpoint_formats import safetensors_tensors
from understudy_wire.files import AnnouncedFile, CopyFiles, FileOutcome, FileResult, FileTask, ReadFiles, WarmFiles

RATE = 1e9
SIZE = 200_000


@functools.cache
def noise(seed: int, size: int = SIZE) -> bytes:
    return b"".join(zlib.compress(b"%d %d" % (seed, block))[:16].ljust(16, b"x") for block in range(size // 16))


def torch_file(seed: int) -> bytes:
    """File as torch.save makes it: a zip file without compression."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": seed}))
        archive.writestr("archive/data/0", noise(seed))
    return made.getvalue()


def safetensors(seed: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [SIZE // 4], "data_offsets": [0, SIZE]}}).encode()
    return len(header).to_bytes(8, "little") + header + noise(seed)


class Saved:
    """A checkpoint of many kinds of files, half of them announced with a checksum."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run" / "step-20"
        self.path.mkdir(parents=True)
        self.target = folder / "shared" / "step-20"
        self.announced: list[dict[str, Any]] = []
        for number in range(3):
            self.add(f"__{number}_0.distcp", noise(number), summed=True)
        self.add("model.pt", torch_file(7), summed=False)
        self.add("model.safetensors", safetensors(8), summed=False)
        self.add(
            "model.safetensors.index.json",
            json.dumps({"weight_map": {"w": "model.safetensors"}}).encode(),
            summed=False,
        )
        (self.path / ".metadata").write_bytes(pickle.dumps({f"part {n}": f"__{n}_0.distcp" for n in range(3)}))

    def add(self, name: str, content: bytes, summed: bool) -> None:
        (self.path / name).write_bytes(content)
        checksum = f"crc32:{zlib.crc32(content):08x}" if summed else ""
        self.announced.append({"file": name, "size_bytes": len(content), "checksum": checksum, "at": time.time()})

    def copy(self) -> dict[str, str]:
        return self.carry_out("copy", copy_to=str(self.target))

    def copied(self) -> dict[str, bytes]:
        """Finished copies by name."""
        return {one.name: one.read_bytes() for one in self.target.iterdir() if one.suffix != ".copy"}

    def read(self, whole: bool = True, **more: bool | float) -> dict[str, str]:
        return self.carry_out("read", **{"whole": whole, "look_for_nan": False, **more})

    def carry_out(self, kind: str, **more: bool | float | str) -> dict[str, str]:
        task = {"type": kind, "path": str(self.path), "files": self.announced, "bytes_per_second": RATE}
        return carry_out({**task, **more})


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


Damage = Callable[[Path], object]


def truncate(name: str, size: int) -> Damage:
    return lambda path: os.truncate(path / name, size)


def flip(name: str, at: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray((path / name).read_bytes())
        content[at] ^= 1
        (path / name).write_bytes(content)

    return damage


def overwrite(name: str, content: bytes) -> Damage:
    def damage(path: Path) -> None:
        before = (path / name).read_bytes()
        (path / name).write_bytes((content + before[len(content) :])[: len(before)])

    return damage


def replaced(name: str, make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return damage


def swapped(path: Path) -> None:
    one, other = path / "__0_0.distcp", path / "__1_0.distcp"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def old(path: Path) -> None:
    """Makes it old, like a later save that fails after its first rank."""
    (path / "__1_0.distcp").write_bytes(noise(99))


def blocks_swapped(path: Path) -> None:
    content = (path / "__2_0.distcp").read_bytes()
    (path / "__2_0.distcp").write_bytes(content[65536:131072] + content[:65536] + content[131072:])


def written_again(path: Path) -> None:
    os.utime(path / "model.safetensors", times=(time.time() + 3600,) * 2)


def named_and_empty(path: Path) -> None:
    (path / "__9_0.distcp").touch()
    (path / ".metadata").write_bytes(pickle.dumps(["__9_0.distcp"]))


def endless(path: Path) -> None:
    """JSON's 1e999 is infinite."""
    header = b'{"w": {"dtype": "F32", "data_offsets": [0, 1e999]}}'
    size = (path / "model.safetensors").stat().st_size
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.ljust(size - 8))


def linked_to_nothing(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("/nowhere")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a shard is one byte short": (truncate("__0_0.distcp", SIZE - 1), "bad"),
    "a shard is half": (truncate("__0_0.distcp", SIZE // 2), "bad"),
    "a shard is empty": (truncate("__0_0.distcp", 0), "bad"),
    "a shard is longer": (truncate("__0_0.distcp", SIZE + 4096), "bad"),
    "the first bit of a shard is flipped": (flip("__0_0.distcp", 0), "bad"),
    "a bit in the middle is flipped": (flip("__0_0.distcp", SIZE // 2), "bad"),
    "the last bit is flipped": (flip("__0_0.distcp", SIZE - 1), "bad"),
    "a page of zeros": (lambda path: _zeros(path / "__1_0.distcp", 8192), "bad"),
    "blocks are swapped": (blocks_swapped, "bad"),
    "shards are swapped": (swapped, "bad"),
    "a shard of another step": (old, "bad"),
    "a shard is missing": (lambda path: (path / "__2_0.distcp").unlink(), "lost"),
    "a shard is a folder": (replaced("__2_0.distcp", lambda one: one.mkdir()), "bad"),
    "a shard is a link to nothing": (replaced("__2_0.distcp", lambda one: one.symlink_to("/nowhere")), "lost"),
    "a shard is a link to a device": (replaced("__2_0.distcp", lambda one: one.symlink_to("/dev/zero")), "bad"),
    "a shard is a pipe": (replaced("__2_0.distcp", os.mkfifo), "bad"),
    "the manifest is missing": (lambda path: (path / ".metadata").unlink(), "bad"),
    "the manifest is cut": (truncate(".metadata", 20), "bad"),
    "the manifest is empty": (truncate(".metadata", 0), "bad"),
    "the manifest is noise": (overwrite(".metadata", b"\xff" * 30), "bad"),
    "the manifest names what is not there": (
        lambda path: (path / ".metadata").write_bytes(pickle.dumps(["__9_0.distcp"])),
        "bad",
    ),
    "the manifest names an empty shard that was not announced": (named_and_empty, "bad"),
    "an index is no JSON": (overwrite("model.safetensors.index.json", b"{{{"), "bad"),
    "the length of a header is damaged": (flip("model.safetensors", 3), "bad"),
    "a header is damaged": (overwrite("model.safetensors", b"\0" * 20), "bad"),
    "a header has a number without an end": (endless, "bad"),
    "a bit of a torch file without a checksum is flipped": (flip("model.pt", SIZE // 2), "bad"),
    "the directory of a torch file is damaged": (flip("model.pt", len(torch_file(7)) - 20), "bad"),
    "all of it is missing": (shutil.rmtree, "lost"),
    "it is a link to nothing": (linked_to_nothing, "lost"),
    "a file without a checksum was written again": (written_again, "suspect"),
}


def _zeros(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(bytes(4096))


def test_what_was_written_is_what_is_read(saved: Saved) -> None:
    assert saved.read(whole=False) == {"outcome": "sampled", "why": ""}
    assert saved.read()["outcome"] == "read", "a file without a checksum proves no more"
    saved.announced = saved.announced[:4]
    assert saved.read()["outcome"] == "verified", "a zip file has its own"


def of_kind(kind: str, *values: float) -> bytes:
    if kind == "BF16":  # the first half of a float
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    letter = {"F16": "e", "F32": "f", "F64": "d"}[kind]
    return struct.pack(f"<{len(values)}{letter}", *values)


def tensors(*named: tuple[str, bytes]) -> bytes:
    """A safetensors file; the name of each tensor is that of its type."""
    header, at = {}, 0
    for kind, content in named:
        header[kind] = {"dtype": kind, "shape": [], "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps({"__metadata__": {"step": "20"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(content for _, content in named)


@pytest.mark.parametrize("block", [3, 64, 1 << 20])
@pytest.mark.parametrize("kind", ["F16", "BF16", "F32", "F64"])
def test_nan_in_a_tensor_is_found_and_nothing_else_is_taken_for_it(kind: str, block: int) -> None:
    odd = (inf, -inf, 0.0, -0.0, 6e4, -6e4, 1e-5)

    def look(*more: float) -> None:
        whole_numbers = ("I64", b"\xff" * 24)  # as floats they would be NaN
        content = tensors(whole_numbers, (kind, of_kind(kind, *odd * 20, *more, *odd)), ("U8", b"\xff" * 5))
        size = 8 + int.from_bytes(content[:8], "little")
        regions = regions_of_safetensors(safetensors_tensors(content[8:size], len(content)), size)
        taking = NanLook("model.safetensors", regions)
        for at in range(0, len(content), block):
            taking.take(content[at : at + block])

    look(2.0)
    for value in (nan, -nan):
        with pytest.raises(Finding, match=f"{kind} contains NaN"):
            look(2.0, value)


def test_what_was_written_is_copied_whole(saved: Saved) -> None:
    (saved.path / "__0_0.distcp").chmod(0o640)
    assert saved.copy() == {"outcome": "copied", "why": ""}
    assert saved.copied() == {one["file"]: (saved.path / one["file"]).read_bytes() for one in saved.announced}
    assert stat.S_IMODE((saved.target / "__0_0.distcp").stat().st_mode) == 0o640
    before = (saved.target / "__0_0.distcp").stat().st_ino
    assert saved.copy()["outcome"] == "copied"
    assert (saved.target / "__0_0.distcp").stat().st_ino == before, "what is there is not copied again"


def test_a_copy_that_was_made_long_after_its_original_is_not_suspect(saved: Saved) -> None:
    """Its files were not written again: they have the time of the original."""
    long_ago = time.time() - 7200
    for one in saved.announced:
        one["at"] = long_ago
        os.utime(saved.path / one["file"], (long_ago, long_ago))
    shutil.copy(saved.path / ".metadata", saved.path.parent)
    assert saved.copy()["outcome"] == "copied"
    saved.path = saved.target
    shutil.copy(saved.path.parents[1] / "run" / ".metadata", saved.path)
    assert saved.read() == {"outcome": "read", "why": ""}


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_harms_neither_the_checkpoint_nor_the_copies_that_are_there(saved: Saved) -> None:
    """The next one is copied when there is room again."""
    saved.target.parent.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(saved.target.parent)], check=True)
    try:
        older = saved.target.parent / "older"
        older.write_bytes(noise(9))
        for _ in range(2):
            assert saved.copy() == {
                "outcome": "unseen",
                "why": f"No space left on device: {saved.target}",
            }
        assert saved.read()["outcome"] == "read"
        assert older.read_bytes() == noise(9)
        assert [one.name for one in saved.target.iterdir()] == ["__0_0.distcp"], "what is whole, and no part of a file"
        subprocess.run(["mount", "-o", "remount,size=10m", str(saved.target.parent)], check=True)
        assert saved.copy()["outcome"] == "copied"
    finally:
        subprocess.run(["umount", str(saved.target.parent)], check=True)


@pytest.mark.parametrize("left", ["its beginning", "another one's", "more"])
def test_a_copy_that_was_broken_off_goes_on(saved: Saved, left: str) -> None:
    content = noise(0)
    of_before = {"its beginning": content[: SIZE // 2], "another one's": noise(5)[: SIZE // 2], "more": content + b"x"}
    saved.target.mkdir(parents=True)
    (saved.target / "__0_0.distcp.copy").write_bytes(of_before[left])
    (saved.target / "model.safetensors.copy").write_bytes(b"no checksum shows whether this is right")
    assert saved.copy()["outcome"] == "copied"
    assert saved.copied() == {one["file"]: (saved.path / one["file"]).read_bytes() for one in saved.announced}


@pytest.mark.parametrize("damage", [flip("__1_0.distcp", 7), truncate("__1_0.distcp", 7)])
def test_what_is_damaged_is_never_there_as_a_copy(saved: Saved, damage: Damage) -> None:
    damage(saved.path)
    assert saved.copy()["outcome"] == "bad"
    assert "__1_0.distcp" not in saved.copied()
    (saved.path / "__1_0.distcp").unlink()
    assert saved.copy()["outcome"] == "lost"


def test_a_copy_follows_no_link_out_of_its_folder(saved: Saved, tmp_path: Path) -> None:
    saved.target.mkdir(parents=True)
    (saved.target / "__0_0.distcp.copy").symlink_to(tmp_path / "elsewhere")
    assert saved.copy()["outcome"] == "unseen"
    assert not (tmp_path / "elsewhere").exists()


def test_a_checkpoint_of_one_file_is_copied_to_a_file(saved: Saved) -> None:
    content = noise(3)
    (saved.path / "one.pt").write_bytes(content)
    saved.path, saved.target = saved.path / "one.pt", saved.target / "other.pt"
    saved.announced = [{"file": ".", "size_bytes": SIZE, "checksum": "", "at": time.time()}]
    assert saved.copy()["outcome"] == "copied"
    assert saved.target.read_bytes() == content


def test_nan_makes_a_checkpoint_bad_where_the_site_looks_for_it(saved: Saved) -> None:
    saved.announced.clear()
    saved.add("model.safetensors", tensors(("F32", of_kind("F32", 1.0, nan))), summed=True)
    assert saved.read()["outcome"] == "verified"
    assert saved.read(look_for_nan=True)["outcome"] == "bad"
    assert saved.read(whole=False, look_for_nan=True)["outcome"] == "sampled"


@pytest.mark.parametrize(("flag", "method"), [(0, 93), (1, 0)], ids=["packed by zstd", "encrypted"])
def test_a_zip_file_that_this_python_does_not_read_is_not_bad(saved: Saved, flag: int, method: int) -> None:
    saved.announced.clear()
    content = torch_file(9)
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        header = content.index(signature)
        fields = flag.to_bytes(2, "little") + method.to_bytes(2, "little")
        content = content[: header + at] + fields + content[header + at + 4 :]
    saved.add("other.npz", content, summed=False)
    assert saved.read()["outcome"] == "read"


def test_a_zip_file_that_names_a_place_before_its_beginning_is_no_whole_one(saved: Saved) -> None:
    place, content = saved.path / "model.pt", bytearray(torch_file(7))
    content[-6:-2] = (1 << 24).to_bytes(4, "little")  # where its list of parts begins
    place.write_bytes(content)
    found = saved.read()
    assert (found["outcome"], found["why"].partition(": ")[0]) == ("bad", f"{place} is no whole zip file")


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(saved: Saved, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(saved.path)
    found = saved.read()
    assert found["outcome"] == expected, found
    assert str(saved.path) in found["why"]


def test_where_the_file_system_is_not_mounted_nothing_is_lost(saved: Saved) -> None:
    saved.path.parent.rename(saved.path.parent.with_name("elsewhere"))
    assert saved.read()["outcome"] == "unseen"


def test_no_more_is_read_than_the_rate_allows(saved: Saved) -> None:
    begun = time.monotonic()
    saved.announced = saved.announced[:1]
    saved.read(bytes_per_second=SIZE / 0.2)
    assert time.monotonic() - begun > 0.15


def test_a_manifest_is_never_executed(saved: Saved, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trap"),)

    (saved.path / ".metadata").write_bytes(pickle.dumps(Trap()))
    assert saved.read()["outcome"] != "bad"
    assert not (tmp_path / "trap").exists()


@pytest.fixture
def public() -> Iterator[Path]:
    """Other users may look into pytest's folders no more than into a home."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-files-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


OWNER, STRANGER = 33, 34
"""www-data and backup, which every Debian has."""


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_a_checkpoint_is_read_with_its_owners_rights_and_never_with_those_of_root(public: Path) -> None:
    """A link of a user leads no further than the user may go."""
    secret = public / "secret"
    secret.write_bytes(b"12345")
    secret.chmod(0o600)
    folder = public / "run" / "c"
    folder.mkdir(parents=True)
    (folder / "own").write_bytes(b"12345")
    for one in (folder.parent, folder, folder / "own"):
        os.chown(one, OWNER, OWNER)
    folder.chmod(0o700)
    (folder / "link").symlink_to(secret)
    assert asyncio.run(outcome(folder, "own", OWNER)) is FileOutcome.VERIFIED
    assert asyncio.run(outcome(folder, "link", OWNER)) is FileOutcome.UNSEEN
    assert asyncio.run(outcome(folder, "own", STRANGER)) is FileOutcome.UNSEEN
    assert asyncio.run(outcome(folder, "own", 0)) is FileOutcome.UNSEEN


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["manifest", "tensor"])
def test_what_a_users_file_names_is_reported_without_what_a_report_cannot_have(public: Path, kind: str) -> None:
    folder = public / "c"
    folder.mkdir()
    header = json.dumps({"w\0": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    files = {
        "manifest": {"__0_0.distcp": b"x", ".metadata": pickle.dumps({"a": "x\0.distcp"})},
        "tensor": {"w.safetensors": len(header).to_bytes(8, "little") + header + of_kind("F32", nan)},
    }[kind]
    owner_id = os.geteuid() or OWNER
    for name, content in files.items():
        (folder / name).write_bytes(content)
        os.chown(folder / name, owner_id, -1)
    os.chown(folder, owner_id, -1)
    listed = [
        AnnouncedFile(name, len(content), f"crc32:{zlib.crc32(content):08x}", 2e9) for name, content in files.items()
    ]
    result = asyncio.run(result_of(ReadFiles(1, owner_id, str(folder), listed, RATE, True, look_for_nan=True)))
    assert result.outcome is FileOutcome.BAD
    assert ("x .distcp" if kind == "manifest" else "w  contains NaN") in result.why
    assert msgspec.json.decode(msgspec.json.encode(result), type=FileResult) == result


async def result_of(asked: FileTask) -> FileResult:
    tasks = FileTasks()
    tasks.take(asked)
    assert tasks.running is not None
    await asyncio.wait_for(tasks.running, 60)
    assert tasks.result is not None
    return tasks.result


async def outcome(folder: Path, file: str, user_id: int, copy_to: str = "") -> FileOutcome:
    content = [AnnouncedFile(file, 5, f"crc32:{zlib.crc32(b'12345'):08x}", time.time())]
    asked: FileTask = ReadFiles(1, user_id, str(folder), content, RATE, whole=True)
    if copy_to:
        asked = CopyFiles(1, user_id, str(folder), content, RATE, copy_to)
    return (await result_of(asked)).outcome


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_a_checkpoint_is_copied_where_its_owner_may_write_and_nowhere_else(public: Path) -> None:
    """The copy is the owner's, too."""
    own, foreign = public / "own", public / "foreign"
    for folder in (own, foreign):
        folder.mkdir()
    (own / "r0").write_bytes(b"12345")
    for one in (own, own / "r0"):
        os.chown(one, OWNER, OWNER)
    assert asyncio.run(outcome(own, "r0", OWNER, str(own / "copies" / "20"))) is FileOutcome.COPIED
    copy = own / "copies" / "20" / "r0"
    assert (copy.read_bytes(), copy.stat().st_uid, list(copy.parent.iterdir())) == (b"12345", OWNER, [copy])
    assert asyncio.run(outcome(own, "r0", OWNER, str(foreign))) is FileOutcome.UNSEEN
    assert asyncio.run(outcome(own, "r0", 0, str(foreign))) is FileOutcome.UNSEEN
    assert list(foreign.iterdir()) == []


def as_the_service(*command: str) -> str:
    """What it prints with the capabilities that the unit of the agent leaves to root."""
    unit = (REPOSITORY / "deploy" / "systemd" / "understudy-agent.service").read_text()
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    names = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in kept.split())
    limits = (f"--bounding-set=-all,{names}", "--inh-caps=-all", "--no-new-privs")
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(["setpriv", *limits, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_the_agents_unit_leaves_root_what_it_needs_to_become_the_owner(public: Path) -> None:
    (public / "own").write_bytes(b"12345")
    os.chown(public / "own", OWNER, OWNER)
    code = (
        "import asyncio, sys; from pathlib import Path; from tests.agent.test_file_tasks import outcome; "
        f"print(asyncio.run(outcome(Path(sys.argv[1]), 'own', {OWNER})).value)"
    )
    assert as_the_service(sys.executable, "-c", code, str(public)) == "verified"


@pytest.mark.integration
def test_a_reading_that_hangs_ends_by_itself() -> None:
    """The agent of a package may not send signals to processes of users."""
    with subprocess.Popen([sys.executable, "-I", "-c", PROGRAM, "1"], stdin=subprocess.PIPE) as process:
        assert process.wait(30) == -signal.SIGALRM


PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=sys.stdin, check=True)
print()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Program that this small one starts: a process counts its parent's peak as its own (getrusage(2))."""


@pytest.mark.integration
def test_no_file_fills_the_memory_of_the_agents_service(saved: Saved) -> None:
    """Both share one limit. 40 MB of JSON became more than a gigabyte."""
    saved.add("x.json", b"[" + b"{}," * 14_000_000 + b"{}]", summed=False)
    task = {"path": str(saved.path), "files": saved.announced, "bytes_per_second": RATE}
    task |= {"type": "read", "whole": True, "look_for_nan": False}
    command = [sys.executable, "-c", PEAK, sys.executable, "-I", "-c", PROGRAM, "100"]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, check=True)
    result, kibibytes = done.stdout.splitlines()
    assert json.loads(result)["outcome"] == "unseen"
    assert int(kibibytes) < 600 << 10


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("kind", ["read", "delete", "warm"])
def test_an_error_of_the_system_that_names_no_file_is_a_result_too(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(carry_out_module, kind, refused)
    place = "files of a program" if kind == "warm" else str(saved.path)
    task = {"type": kind, "bytes_per_second": RATE, **({} if kind == "warm" else {"path": str(saved.path)})}
    assert carry_out(task) == {"outcome": "unseen", "why": f"{os.strerror(code)}: {place}"}


def test_a_manifest_that_is_too_large_to_look_through_is_not_bad(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of half a million parts of tensors is one."""
    size = (saved.path / ".metadata").stat().st_size
    monkeypatch.setattr(read, "MANIFEST_BYTES_MAX", size)
    assert saved.read()["outcome"] == "read"
    saved.add("trainer_state.json", json.dumps(["x" * size]).encode(), summed=False)
    assert saved.read()["outcome"] == "read", "it is read, and not taken apart"
    monkeypatch.setattr(read, "MANIFEST_BYTES_MAX", size - 1)
    for look_for_nan in (False, True):
        found = saved.read(look_for_nan=look_for_nan)
        assert (found["outcome"], found["why"].startswith(f"{saved.path}/.metadata has more than")) == ("unseen", True)


def test_a_manifest_that_is_a_pipe_holds_nothing_up(saved: Saved) -> None:
    (saved.path / ".metadata").unlink()
    os.mkfifo(saved.path / ".metadata")
    assert saved.read()["outcome"] == "bad"


# -- files of programs -------------------------------------------------------------------------------------------------


def resident_share(path: Path) -> float:
    """Share of a file's pages in the page cache."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), found)
        del start
    assert not failed
    return sum(page & 1 for page in found) / pages


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cache(paths: list[Path], user_id: int, bytes_max: int = 1 << 30) -> FileResult:
    async def asked() -> FileResult:
        file_tasks = FileTasks()
        packed = pack([str(path) for path in paths], [])
        file_tasks.take(WarmFiles(1, user_id, packed, bytes_max, RATE))
        assert file_tasks.running is not None
        await asyncio.wait_for(file_tasks.running, 60)
        assert file_tasks.result is not None
        return file_tasks.result

    return asyncio.run(asked())


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_the_files_of_a_program_are_in_the_page_cache_afterwards(public: Path) -> None:
    library, compiled, source, secret = (public / name for name in ("a.so", "b.cpython-311.pyc", "b.py", "secret"))
    for path in (library, source, secret):
        path.write_bytes(os.urandom(1 << 20))
        evict(path)
    secret.chmod(0o600)
    (public / "__pycache__").mkdir()
    absent = public / "__pycache__" / compiled.name
    os.mkfifo(public / "fifo")
    assert [resident_share(path) for path in (library, source, secret)] == [0, 0, 0], "the test can fail"
    result = cache([library, absent, secret, public / "gone.so", public / "fifo"], OWNER)
    assert (result.outcome, result.why) == (FileOutcome.WARMED, "2 of 5 files, 2 MB")
    assert [resident_share(path) for path in (library, source)] == [1, 1], "without its compiled file a module is read"
    assert resident_share(secret) == 0, "it is not the user's to read"
    evict(source)
    assert cache([library, source], OWNER, bytes_max=1 << 20).why == "1 of 2 files, 1 MB"
    assert resident_share(source) == 0
    assert cache([secret], OWNER).outcome is FileOutcome.UNSEEN
    assert cache([library], 0).outcome is FileOutcome.UNSEEN


@pytest.mark.parametrize(("limit", "limited"), [("1073741824\n", True), ("max\n", False), (None, False)])
def test_a_service_with_a_limit_of_memory_keeps_no_more_in_the_page_cache(
    limit: str | None, limited: bool, tmp_path: Path
) -> None:
    """Then systemd runs what reads. Tried here on the files of the kernel's interface, as there is no systemd."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("1:name=systemd:/x\n0::/system.slice/understudy-agent.service\n")
    service = tmp_path / "system.slice/understudy-agent.service"
    service.mkdir(parents=True)
    if limit is not None:
        (service / "memory.max").write_text(limit)
    assert memory_is_limited(tmp_path, tmp_path) is limited
    assert "--property=RuntimeMaxSec=600" in in_own_unit(600.0)
    assert "$" not in PROGRAM, "systemd replaces variables in a command"


@pytest.mark.integration
def test_what_reads_ends_when_its_agent_wants_it_no_longer(tmp_path: Path) -> None:
    """An agent without CAP_KILL closes the pipe; systemd, in whose unit it may run, would let it go on."""
    path = tmp_path / "library.so"
    path.write_bytes(bytes(1 << 20))
    task = WarmFiles(1, os.geteuid(), pack([str(path)], []), 1 << 30, 10.0)
    command = [sys.executable, "-I", "-c", PROGRAM, "100"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        assert process.wait(30) == 1


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as an agent has")
def test_a_program_is_read_no_further_when_the_answer_to_a_report_has_no_such_task(public: Path) -> None:
    library = public / "a.so"
    library.write_bytes(bytes(1 << 20))
    files = [AnnouncedFile("a.so", 1 << 20, "", time.time())]
    program = WarmFiles(1, OWNER, pack([str(library)], []), 1 << 30, 10.0)
    checkpoint = ReadFiles(2, OWNER, str(public), files, 10.0, whole=True)

    async def goes_on(*tasks: FileTask | None) -> bool:
        """True if the first of these tasks is still at work after the answers with the others."""
        file_tasks = FileTasks()
        file_tasks.take(tasks[0])
        first = file_tasks.running
        assert first is not None
        for one in tasks[1:]:
            await asyncio.sleep(0.2)
            file_tasks.take(one)
        _, at_work = await asyncio.wait({first}, timeout=ENDS_SECONDS)
        await file_tasks.stop()
        return first in at_work

    async def begins_again() -> None:
        file_tasks = FileTasks()
        file_tasks.take(program)
        first = file_tasks.running
        await asyncio.sleep(0.2)
        file_tasks.take(None)
        async with asyncio.timeout(30):
            while file_tasks.running is first:
                await asyncio.sleep(0.05)
                file_tasks.take(program)
        await file_tasks.stop()

    assert asyncio.run(goes_on(program, program))
    assert not asyncio.run(goes_on(program, None))
    assert not asyncio.run(goes_on(program, checkpoint))
    asyncio.run(begins_again())
    assert asyncio.run(goes_on(checkpoint, None, program)), "a checkpoint is read to its end"


def settings_of_unit() -> list[str]:
    return [one.removeprefix("--property=") for one in in_own_unit(600.0) if one.startswith("--property=")]


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_two_capabilities_are_enough_to_read_with_the_rights_of_the_owner(public: Path) -> None:
    """The unit has these two."""
    assert "CapabilityBoundingSet=CAP_SETUID CAP_SETGID" in settings_of_unit()
    assert {"AmbientCapabilities=", "NoNewPrivileges=yes", "RestrictNamespaces=yes"} <= set(settings_of_unit())
    library, secret = public / "a.so", public / "secret"
    for path in (library, secret):
        path.write_bytes(bytes(100))
    secret.chmod(0o600)
    task = WarmFiles(1, OWNER, pack([str(library), str(secret)], []), 1 << 30, RATE)
    confined = ["setpriv", "--bounding-set=-all,+setuid,+setgid", "--inh-caps=-all", "--no-new-privs"]
    command = [*confined, sys.executable, "-I", "-c", PROGRAM, "100", str(OWNER), str(OWNER)]
    done = subprocess.run(command, input=msgspec.json.encode(task), capture_output=True, check=True)
    assert json.loads(done.stdout)["why"].startswith("1 of 2 files")


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_knows_the_settings_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "reading.service"

    def complaints(*settings: str) -> list[str]:
        unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *settings, ""]))
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if "reading.service" in line]

    assert complaints(*settings_of_unit()) == []
    assert complaints("CapabilitiesBoundingSet=CAP_SETUID")
