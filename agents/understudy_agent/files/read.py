"""Reads files of a checkpoint back, and says whether they are what was written."""

from __future__ import annotations

import io
import json
import os
import pickletools
import random
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from understudy_agent.files import distcp
from understudy_agent.files.announced import (
    BLOCK_BYTES,
    WRITTEN_AFTER_SECONDS,
    Finding,
    Pace,
    open_announced,
    sum_named,
)
from understudy_wire.checkpoint_formats import safetensors_header_bytes, safetensors_tensors

SAMPLES = 16
SAMPLE_BYTES = 1 << 16
MANIFEST_BYTES_MAX = 64 << 20
DESCRIPTION_BYTES = 8192
DISTCP = ".distcp"
INFINITY = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F80_0000, "F64": 0x7FF0_0000_0000_0000}
"""Infinity as an unsigned number, by safetensors' name of the type; what is larger, without its sign, is NaN."""


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
    """A file for zipfile that begins at `begin` of a descriptor."""

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


def read(task: dict[str, Any], pace: Pace) -> str:
    """Raises Finding for what is not what was written."""
    path, whole, looks, proven = Path(task["path"]), task["whole"], task["look_for_nan"], True
    is_distcp = any(one["file"].endswith(DISTCP) for one in task["files"])
    items = _items_of_distcp(path) if looks and whole and is_distcp else {}
    for one in task["files"]:
        file = {**one, "look_for_nan": looks, "items": items.get(one["file"], [])}
        proven = read_file(str(path / one["file"]), file, whole, pace) and proven
    if is_distcp:
        _read_metadata(path)
    if not whole:
        return "sampled"
    return "verified" if proven else "read"


def read_file(place: str, announced: dict[str, Any], whole: bool, pace: Pace) -> bool:
    """True if its content is proven, and not only readable. Raises Finding."""
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
            read_blocks(descriptor, place, size, pace, looks)
        return proven
    update, value = sum_of
    read_blocks(descriptor, place, size, pace, [update, *looks])
    if value() != announced["checksum"].partition(":")[2]:
        raise Finding("bad", f"{place} has the checksum {value()}, {announced['checksum']} was announced")
    return True


def read_blocks(
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
    try:
        length = safetensors_header_bytes(start, size)
        tensors = safetensors_tensors(os.pread(descriptor, length, 8), size)
        return NanLook(place, regions_of_safetensors(tensors, 8 + length))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Finding("bad", f"{place}: {error}") from None


def regions_of_safetensors(tensors: dict[str, Any], header_bytes: int) -> list[distcp.Region]:
    return [
        distcp.Region(header_bytes + int(begin), header_bytes + int(end), str(one.get("dtype")), name)
        for name, one, (begin, end) in ((name, one, one["data_offsets"]) for name, one in tensors.items())
    ]


def _regions_of_distcp(descriptor: int, size: int, items: Iterable[distcp.Item], pace: Pace) -> Iterator[distcp.Region]:
    for item in items:
        if 0 <= item.begin < item.begin + item.length <= size:
            content = PacedFile(descriptor, item.length, pace, item.begin)
            found = distcp.region(item, io.BufferedReader(content, DESCRIPTION_BYTES))
            if found is not None:
                yield found


def _items_of_distcp(path: Path) -> dict[str, list[distcp.Item]]:
    """Items by file, as the manifest names them. None if it cannot be read: what is wrong with it is found later."""
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
        shard = path / name
        if not shard.is_file() or not shard.stat().st_size:
            raise Finding("bad", f"{place} names {name}, which is {'empty' if shard.is_file() else 'not there'}")


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
