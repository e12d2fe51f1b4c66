"""Reads files of a checkpoint back, copies or deletes them, and says whether they are what was written; or reads the
files of a program into the page cache. Runs as their owner.

The agent starts it as a process of its own (`readbacks.py`), with the task on its standard input and the result on its
standard output. It imports nothing but the standard library, `xxhash` where that is installed, and botocore for what is
in an object store.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib.util
import io
import json
import os
import pickletools
import random
import resource
import signal
import stat
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from understudy_agent import distcp, object_readback
from understudy_agent.announced_file import BLOCK_BYTES, Finding, Pace, open_announced, sum_named, value_of

SAMPLES = 16
SAMPLE_BYTES = 1 << 16
MANIFEST_BYTES_MAX = 64 << 20
DESCRIPTION_BYTES = 8192
DISTCP = ".distcp"
HEADER_BYTES_MAX = 100_000_000  # safetensors' own limit
WRITTEN_AFTER_SECONDS = 300.0
"""By which a file may be younger than its announcement: clocks of file servers differ."""

PIN = ".keep"
"""Of a checkpoint's folder, a file that keeps it from being deleted; beside a checkpoint of one file, with its name."""

FULL = (errno.ENOSPC, errno.EDQUOT)

PROGRAM_BYTES_MAX = 4 << 20
"""Of the paths of a program's files."""

TASK_BYTES_MAX = 16 << 20
MEMORY_BYTES_MAX = 512 << 20
"""Of its address space: it shares the agent's limit, and the content of files is a user's."""


INFINITY = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F80_0000, "F64": 0x7FF0_0000_0000_0000}
"""As an unsigned number, by safetensors' name of the type; what is larger, without its sign, is NaN."""


class NanLook:
    """Takes a file from its beginning, in blocks. Raises Finding at the first NaN."""

    def __init__(self, place: str, regions: Iterable[distcp.Region]) -> None:
        self._place, self._at, self._rest = place, 0, b""
        self._left = sorted((one for one in regions if one.kind in INFINITY), reverse=True)  # the next one is the last

    def take(self, data: bytes) -> None:
        end = self._at + len(data)
        while self._left and self._left[-1][0] < end:
            begin, tensor_end, kind, name = self._left[-1]
            own = self._rest + data[max(begin - self._at, 0) : tensor_end - self._at]
            size = INFINITY[kind].bit_length() // 8 + 1
            whole = len(own) // size * size
            if _has_nan(own[:whole], size, INFINITY[kind]):
                raise Finding("bad", f"{self._place}: {name} contains NaN")
            self._rest = own[whole:]
            if tensor_end > end:
                break
            self._rest = b""
            self._left.pop()
        self._at = end


def _has_nan(data: bytes, size: int, infinity: int) -> bool:
    """The highest byte of each number shows which can be NaN: few are, of numbers as models have them."""
    exponent = infinity >> (8 * (size - 1))
    can_be = bytes(byte & exponent == exponent for byte in range(256))
    marked = data[size - 1 :: size].translate(can_be)
    number = marked.find(1)
    while number >= 0:
        value = int.from_bytes(data[number * size : (number + 1) * size], "little")
        if value & ((1 << (8 * size - 1)) - 1) > infinity:
            return True
        number = marked.find(1, number + 1)
    return False


class PacedFile(io.RawIOBase):
    """Of a descriptor from `begin` on, for zipfile."""

    def __init__(self, descriptor: int, size: int, pace: Pace, begin: int = 0) -> None:
        self._descriptor, self._size, self._pace, self._begin, self._at = descriptor, size, pace, begin, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError(f"there is no place {at}")
        self._at = at
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), max(self._size - self._at, 0))
        data = os.pread(self._descriptor, length, self._begin + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        self._pace.note(len(data))
        return len(data)


def read_back(task: dict[str, Any]) -> dict[str, str]:
    """Never raises: what the system refuses is a result."""
    try:
        if task.get("program"):
            return {
                "outcome": "cached",
                "why": _cache(task["program"], task["bytes_max"], Pace(task["bytes_per_second"])),
            }
        return {"outcome": _read_all(task), "why": ""}
    except Finding as found:
        return {"outcome": found.outcome, "why": found.why}
    except MemoryError:
        return {
            "outcome": "unseen",
            "why": f"it needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory to look through",
        }
    except OSError as error:
        place = task["copy_to"] if error.errno in FULL else task["path"]
        return {"outcome": "unseen", "why": f"{error.strerror or type(error).__name__}: {error.filename or place}"}


def _read_all(task: dict[str, Any]) -> str:
    path, pace = Path(task["path"]), Pace(task["bytes_per_second"])
    if task["path"].startswith(object_readback.SCHEME):
        return object_readback.read_back(task, pace)
    if not path.parent.is_dir():
        raise Finding("unseen", f"{path.parent} is not there: the file system may not be mounted")
    if task.get("delete"):
        return _delete(path, task["files"], task["whole"])
    if task.get("copy_to", "").startswith(object_readback.SCHEME):
        return object_readback.copy(task, pace)
    if task.get("copy_to"):
        for one in task["files"]:
            _copy_file(path / one["file"], Path(task["copy_to"]) / one["file"], one, pace)
        return "copied"
    looks, proven = bool(task.get("look_for_nan")), True
    is_distcp = any(one["file"].endswith(DISTCP) for one in task["files"])
    items = _items_of_distcp(path) if looks and task["whole"] and is_distcp else {}
    for one in task["files"]:
        file = {**one, "look_for_nan": looks, "items": items.get(one["file"], [])}
        proven = _read_file(str(path / one["file"]), file, task["whole"], pace) and proven
    if is_distcp:
        _read_metadata(path)
    if not task["whole"]:
        return "sampled"
    return "verified" if proven else "read"


def _cache(packed: str, bytes_max: int, pace: Pace) -> str:
    """Reads the files of a program, so that they are in the page cache afterwards. What is not there is left out.
    Raises Finding where none is.
    """
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(packed), PROGRAM_BYTES_MAX)
    except (ValueError, zlib.error) as error:
        raise Finding("unseen", f"the list of files cannot be read: {error}") from None
    paths = text.decode("utf-8", "surrogateescape").split("\n")
    before, read = bytes_max, 0
    for path in paths:
        if bytes_max <= 0:
            break
        count = _cache_file(path, bytes_max, pace)
        if count is None and path.endswith(".pyc"):
            with contextlib.suppress(ValueError):
                count = _cache_file(importlib.util.source_from_cache(path), bytes_max, pace)
        read += count is not None
        bytes_max -= count or 0
    if not read:
        raise Finding("unseen", f"none of its {len(paths)} files can be read here")
    return f"{read} of {len(paths)} files, {(before - bytes_max) / 1e6:.0f} MB"


def _cache_file(path: str, bytes_max: int, pace: Pace) -> int | None:
    """How many bytes it has read. None: there is no such file for this user."""
    if not path.startswith("/"):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        found, at = os.fstat(descriptor), 0
        if not stat.S_ISREG(found.st_mode):
            return None
        while at < min(found.st_size, bytes_max) and (data := os.pread(descriptor, BLOCK_BYTES, at)):
            at += len(data)
            pace.note(len(data))
    except OSError:
        return None
    else:
        return at
    finally:
        os.close(descriptor)


def _read_file(place: str, announced: dict[str, Any], whole: bool, pace: Pace) -> bool:
    """Whether its content is proven, and not only readable. Raises Finding."""
    descriptor = open_announced(place, announced)
    try:
        try:
            return _read_content(descriptor, place, announced, os.fstat(descriptor), whole, pace)
        except OSError as error:
            raise Finding("bad", f"{place} cannot be read: {error.strerror}") from None
        finally:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _copy_file(source: Path, target: Path, announced: dict[str, Any], pace: Pace) -> None:
    """It is there whole, or as it was before. Goes on where an earlier process was ended. Raises Finding."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if announced["checksum"] and _is_there(target, announced, pace):
        return
    partial = target.with_name(f"{target.name}.copy")
    reading = open_announced(str(source), announced)
    try:
        writing = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(writing, stat.S_IMODE(os.fstat(reading).st_mode) & 0o777)
            can_go_on = sum_named(announced["checksum"]) is not None
            begun = os.fstat(writing).st_size if can_go_on else 0
            value = _copy_content(reading, writing, announced, begun, pace)
            if value != value_of(announced) and begun:  # of another checkpoint
                value = _copy_content(reading, writing, announced, 0, pace)
            if value != value_of(announced):
                raise Finding("bad", f"{source} has the checksum {value}, {announced['checksum']} was announced")
            times = os.fstat(reading)
            os.utime(writing, ns=(times.st_atime_ns, times.st_mtime_ns))  # it was not written later
            os.fsync(writing)
        finally:
            os.close(writing)
        partial.replace(target)
    except OSError as error:
        if error.errno in FULL:
            partial.unlink(missing_ok=True)
        raise
    finally:
        os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(reading)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delete(path: Path, announced: Sequence[dict[str, Any]], also: bool) -> str:
    """Looks whether all files can go, and deletes them if `also`: then some may be gone, from a time before."""
    pin = next((one for one in (path / PIN, path.with_name(path.name + PIN)) if os.path.lexists(one)), None)
    if pin is not None:
        raise Finding("unseen", f"{pin} pins it")
    there = [path / one["file"] for one in announced if not (also and not os.path.lexists(path / one["file"]))]
    for one in announced:
        if path / one["file"] in there:
            _check_deletable(path / one["file"], one)
    if not also:
        return "deletable"
    for place in there:
        place.unlink(missing_ok=True)
    for folder in sorted({parent for place in there for parent in _folders(place, path)}, reverse=True):
        with contextlib.suppress(OSError):  # other files are in it
            folder.rmdir()
    return "deleted"


def _check_deletable(place: Path, announced: dict[str, Any]) -> None:
    """Raises Finding for anything but the file that was announced."""
    try:
        found = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise Finding("lost", f"{place} is not there") from None
    what = "" if stat.S_ISREG(found.st_mode) else "is no file"
    if found.st_uid != os.geteuid():
        what = "belongs to another user"
    elif not what and found.st_size != announced["size_bytes"]:
        what = f"has {found.st_size} bytes, {announced['size_bytes']} were announced"
    elif not what and found.st_mtime > announced["at"] + WRITTEN_AFTER_SECONDS:
        what = "was written again after it was announced"
    if what:
        raise Finding("suspect", f"{place} {what}")


def _folders(place: Path, path: Path) -> list[Path]:
    """Of a file, within the checkpoint's own folder."""
    return [one for one in place.parents if one.is_relative_to(path)]


def _copy_content(reading: int, writing: int, announced: dict[str, Any], begun: int, pace: Pace) -> str:
    """From `begun` on, before which it is there. The checksum of all of it; empty: there is none."""
    size = announced["size_bytes"]
    update, value = sum_named(announced["checksum"]) or (lambda _: None, lambda: "")
    at = min(begun, size)
    os.ftruncate(writing, at)
    _read_blocks(writing, announced["file"], at, pace, [update])
    while at < size:
        data = os.pread(reading, min(BLOCK_BYTES, size - at), at)
        if not data:
            raise Finding("bad", f"{announced['file']} ends at {at}: it is being written")
        update(data)
        written = 0
        while written < len(data):
            written += os.pwrite(writing, data[written:], at + written)
        at += len(data)
        pace.note(len(data))
    return value()


def _is_there(target: Path, announced: dict[str, Any], pace: Pace) -> bool:
    """With the same content, from an earlier copy."""
    try:
        return _read_file(str(target), announced, True, pace)
    except (OSError, Finding):
        return False


def _read_content(
    descriptor: int, place: str, announced: dict[str, Any], found: os.stat_result, whole: bool, pace: Pace
) -> bool:
    size = found.st_size
    sum_of = sum_named(announced["checksum"])
    if not announced["checksum"] and found.st_mtime > announced["at"] + WRITTEN_AFTER_SECONDS:
        raise Finding("suspect", f"{place} was written again after it was announced")
    proven, tensors = _read_structure(descriptor, place, size, whole and sum_of is None, pace)
    if announced.get("items"):
        tensors = NanLook(place, _regions_of_distcp(descriptor, size, announced["items"], pace))
    if not whole:
        _read_samples(descriptor, place, size, pace)
        return False
    looks = [tensors.take] if tensors is not None and announced.get("look_for_nan") else []
    if sum_of is None:
        if not proven or looks:
            _read_blocks(descriptor, place, size, pace, looks)
        return proven
    update, value = sum_of
    _read_blocks(descriptor, place, size, pace, [update, *looks])
    if value() != announced["checksum"].partition(":")[2]:
        raise Finding("bad", f"{place} has the checksum {value()}, {announced['checksum']} was announced")
    return True


def _read_blocks(
    descriptor: int, place: str, size: int, pace: Pace, takers: Sequence[Callable[[bytes], object]]
) -> None:
    at = 0
    while at < size:
        data = os.pread(descriptor, min(BLOCK_BYTES, size - at), at)
        if not data:
            raise Finding("bad", f"{place} ends at {at}: it is being written")
        for take in takers:
            take(data)
        at += len(data)
        pace.note(len(data))


def _read_samples(descriptor: int, place: str, size: int, pace: Pace) -> None:
    """Beginning, end, and some places between them."""
    last = max(size - SAMPLE_BYTES, 0)
    for at in (0, last, *(random.randint(0, last) for _ in range(SAMPLES if last else 0))):  # noqa: S311 - no secret
        data = os.pread(descriptor, SAMPLE_BYTES, at)
        if len(data) < min(SAMPLE_BYTES, size - at):
            raise Finding("bad", f"{place} ends early: it is being written")
        pace.note(len(data))


def _read_structure(descriptor: int, place: str, size: int, whole: bool, pace: Pace) -> tuple[bool, NanLook | None]:
    """What the format itself says: whether it proves the content, and where tensors lie. Raises Finding."""
    start = os.pread(descriptor, 8, 0)
    if place.endswith(".safetensors"):
        return False, _read_safetensors(descriptor, place, size, start)
    if place.endswith(".json"):
        if size <= MANIFEST_BYTES_MAX:
            _read_json(os.pread(descriptor, size, 0), place)
    elif start.startswith(b"PK\x03\x04") and not place.endswith(DISTCP):  # torch.save
        return _read_zip(descriptor, place, size, whole, pace), None
    elif place.endswith((".pt", ".pth", ".ckpt", ".distcp")) and size and not any(start):
        raise Finding("bad", f"{place} begins with zeros")
    return False, None


def _read_zip(descriptor: int, place: str, size: int, whole: bool, pace: Pace) -> bool:
    """A zip file has a checksum of each of its parts."""
    try:
        with zipfile.ZipFile(io.BufferedReader(PacedFile(descriptor, size, pace), BLOCK_BYTES)) as archive:
            broken = archive.testzip() if whole else None
    except (NotImplementedError, RuntimeError):  # packed or encrypted in a way that this Python does not read
        return False
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
        raise Finding("bad", f"{place} is no whole zip file: {error}") from None
    if broken is not None:
        raise Finding("bad", f"{place}: the content of {broken} does not have its checksum")
    return whole


def _read_safetensors(descriptor: int, place: str, size: int, start: bytes) -> NanLook:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, HEADER_BYTES_MAX):
        raise Finding("bad", f"{place}: the length of its header is {length}")
    header = _read_json(os.pread(descriptor, length, 8), place)
    try:
        end = max((one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"), default=0)
        look = NanLook(place, regions_of_safetensors(header, 8 + length))
    except (AttributeError, LookupError, TypeError, ValueError):
        raise Finding("bad", f"{place}: its header names no tensors") from None
    if 8 + length + end != size:
        raise Finding("bad", f"{place} has {size} bytes, its header describes {8 + length + end}")
    return look


def regions_of_safetensors(header: dict[str, Any], header_bytes: int) -> list[distcp.Region]:
    tensors = [(name, one) for name, one in header.items() if name[:2] != "__"]
    return [
        distcp.Region(header_bytes + int(begin), header_bytes + int(end), str(one.get("dtype")), name)
        for name, one, (begin, end) in ((name, one, one["data_offsets"]) for name, one in tensors)
    ]


def _regions_of_distcp(descriptor: int, size: int, items: Iterable[distcp.Item], pace: Pace) -> Iterator[distcp.Region]:
    for item in items:
        if 0 <= item.begin < item.begin + item.length <= size:
            content = PacedFile(descriptor, item.length, pace, item.begin)
            found = distcp.region(item, io.BufferedReader(content, DESCRIPTION_BYTES))
            if found is not None:
                yield found


def _items_of_distcp(path: Path) -> dict[str, list[distcp.Item]]:
    """By file, as the manifest names them. None, where it cannot be read: what is wrong with it is found later."""
    try:
        return distcp.items(_read_manifest(path / ".metadata"))
    except (Finding, OSError):
        return {}


def _read_json(data: bytes, place: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Finding("bad", f"{place} cannot be read: {error}") from None


def _read_metadata(path: Path) -> None:
    """The manifest of torch.distributed.checkpoint: a pickle, which is looked through and never executed."""
    place = path / ".metadata"
    data = _read_manifest(place)
    try:
        texts = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged one makes of it
        raise Finding("bad", f"{place} cannot be read: {error}") from None
    for name in {text for text in texts if text.endswith(".distcp") and "/" not in text}:
        if not (path / name).is_file():
            raise Finding("bad", f"{place} names {name}, which is not there")


def _read_manifest(place: Path) -> bytes:
    """Raises Finding."""
    try:
        with open(place, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Finding("bad", f"{place} is no file")
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise Finding("bad", f"{place} is not there") from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise Finding("unseen", f"{place} has more than {MANIFEST_BYTES_MAX} bytes: it is not looked through")
    return data


def take_rights(user: int, group: int, *groups: int) -> None:
    """For good: afterwards no way leads back to root."""
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    if 0 in (*os.getresuid(), os.getresgid()[1]) and user != 0:
        raise PermissionError("the rights of root are not given up")


def bound_memory() -> None:
    """Of this process, which shares the agent's limit: it ends before the agent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))


def _end_with_stdin() -> None:
    """The agent wants it no longer, or has ended itself."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main() -> None:
    """Arguments: after how many seconds it ends at the latest, and the rights that it takes."""
    seconds, *rights = map(int, sys.argv[1:])
    signal.alarm(seconds)  # an agent without CAP_KILL cannot end it
    task = sys.stdin.buffer.readline(TASK_BYTES_MAX)
    if task.endswith(b"\n"):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    bound_memory()
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # nothing that a user configures starts a program
    asked = json.loads(task)
    if rights:
        object_readback.prepare(asked)
        take_rights(*rights)
    os.nice(19)
    sys.stdout.write(json.dumps(read_back(asked)))


if __name__ == "__main__":
    main()
