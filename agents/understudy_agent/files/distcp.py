"""Places of tensors in the files of torch.distributed.checkpoint, without torch.

Its manifest and each tensor's description are pickles, which are a user's. Nothing of what they describe is made:
whatever class or function they name, an inert one stands for it.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

LOCAL_HEADER_BYTES = 30
DESCRIPTION_BYTES_MAX = 1 << 20
"""Most bytes of one tensor's description."""

_GETS = {"GET", "BINGET", "LONG_BINGET"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}

_READ = ("storage_data", "fqn", "relative_path", "offset", "length")

KINDS: Mapping[str, tuple[str, int]] = {
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "FloatStorage": ("F32", 4),
    "DoubleStorage": ("F64", 8),
}
"""torch's name of a storage → safetensors' name of the numbers in it, and their bytes. Others are not looked into."""


class Item(NamedTuple):
    """What one call of torch.save has written, within a file."""

    name: str
    begin: int
    length: int


class Region(NamedTuple):
    """Numbers of a tensor, within a file."""

    begin: int
    end: int
    kind: str
    name: str


class _Inert:
    """Takes the place of what a pickle names, and keeps what is read of what it would have been made of."""

    __slots__ = ("_read", "arguments")
    name = ""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            found = (state.get(name) for name in _READ)
            self._read = tuple(one if isinstance(one, str | int | dict) else None for one in found)

    def get(self, name: str) -> Any:
        read = getattr(self, "_read", None)
        return read and read[_READ.index(name)]

    def __setitem__(self, key: Any, value: Any) -> None:
        """An ordered dictionary calls it."""


class _Storage(NamedTuple):
    kind: str
    key: str


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes | bytearray) -> None:
        super().__init__(io.BytesIO(data))
        self._classes: dict[str, type[_Inert]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ARG002 - imports nothing
        if global_name not in self._classes:
            self._classes[global_name] = type("Inert", (_Inert,), {"__slots__": (), "name": global_name})
        return self._classes[global_name]

    def persistent_load(self, pid: Any) -> Any:
        """("storage", class, key, device, count), in what torch.save writes."""
        if isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[1], type):
            return _Storage(str(getattr(pid[1], "name", "")), str(pid[2]))
        return None


def items(manifest: bytes) -> dict[str, list[Item]]:
    """Items by file. What is not understood is left out."""
    try:
        found = _load(_forgetful(manifest)).get("storage_data")
        known = found.items() if isinstance(found, dict) else ()
        return _by_file((key.get("fqn"), value) for key, value in known)
    except (AttributeError, TypeError):
        return {}


def _by_file(found: Iterable[tuple[Any, Any]]) -> dict[str, list[Item]]:
    by_file: dict[str, list[Item]] = {}
    for name, where in found:
        file, begin, length = (where.get(one) for one in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(file, str) and isinstance(begin, int) and isinstance(length, int):
            by_file.setdefault(file, []).append(Item(name, begin, length))
    return by_file


def region(item: Item, content: io.BufferedIOBase) -> Region | None:
    """`content` is that of the item alone. None: it is no tensor of numbers that can be NaN, or not all of its storage
    is of this tensor.
    """
    try:
        with zipfile.ZipFile(content) as archive:
            names = {one.filename.partition("/")[2]: one for one in archive.infolist()}
            described, order = names.get("data.pkl"), names.get("byteorder")
            if described is None or described.file_size > DESCRIPTION_BYTES_MAX:
                return None
            if order is not None and order.file_size < 16 and archive.read(order) != b"little":
                return None
            tensor = _load(archive.read(described))
        storage, _, size, *_ = tensor.arguments
        kind, width = KINDS[storage.kind]
        numbers = names[f"data/{storage.key}"]
        if numbers.compress_type != zipfile.ZIP_STORED or numbers.file_size != math.prod(size) * width:
            return None
        content.seek(numbers.header_offset)
        header = content.read(LOCAL_HEADER_BYTES)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
        return None
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    begin = item.begin + numbers.header_offset + LOCAL_HEADER_BYTES + skipped
    return Region(begin, begin + numbers.file_size, kind, item.name)


def _load(data: bytes | bytearray) -> Any:
    """Raises TypeError for what is no such pickle."""
    with _as_type_error():
        return _Unpickler(data).load()


def _forgetful(data: bytes) -> bytearray:
    """The same pickle, whose reader keeps in its memo what is used again alone. Else nothing that it has made is ever
    freed, and it needs sixteen times the size of a manifest. pickletools.optimize does the same, and needs more memory
    than that for it. Raises TypeError for what is no pickle.
    """
    made, kept, memorized, is_cut = bytearray(), 0, 0, False
    with _as_type_error():
        used: dict[int, int] = {}
        for code, argument, _ in pickletools.genops(data):
            if code.name in _GETS:
                used.setdefault(cast("int", argument), len(used))
        for code, argument, at in pickletools.genops(data):
            if is_cut:
                kept, is_cut = at or 0, False
            if code.name in _GETS:
                instead = pickle.LONG_BINGET + struct.pack("<I", used[cast("int", argument)])
            elif code.name in _PUTS:
                number = used.get(memorized if argument is None else argument)
                instead = b"" if number is None else pickle.LONG_BINPUT + struct.pack("<I", number)
                memorized += 1
            elif code.name == "FRAME":
                instead = b""
            else:
                continue
            made += data[kept:at]
            made += instead
            is_cut = True
        if not is_cut:
            made += data[kept:]
    return made


@contextlib.contextmanager
def _as_type_error() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged pickle makes of it
        raise TypeError(str(error)) from None
