"""Where tensors lie in the files of torch.distributed.checkpoint, without torch.

Its manifest and each tensor's description are pickles, which are a user's. Nothing of what they describe is made:
whatever class or function they name, an inert one stands for it.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LOCAL_HEADER_BYTES = 30
DESCRIPTION_BYTES_MAX = 1 << 20
"""Of one tensor."""

KINDS: Mapping[str, tuple[str, int]] = {
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "FloatStorage": ("F32", 4),
    "DoubleStorage": ("F64", 8),
}
"""As torch names storages: safetensors' name of the numbers in them, and their bytes. Others are not looked into."""


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
    """Takes the place of what a pickle names, and keeps what it would have been made of."""

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Mapping[Any, Any] = {}

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {}

    def __setitem__(self, key: Any, value: Any) -> None:
        """Of an ordered dictionary."""


class _Storage(NamedTuple):
    kind: str
    key: str


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._classes: dict[str, type[_Inert]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ARG002 - imports nothing
        if global_name not in self._classes:
            self._classes[global_name] = type("Inert", (_Inert,), {"name": global_name})
        return self._classes[global_name]

    def persistent_load(self, pid: Any) -> Any:
        """("storage", class, key, device, count), in what torch.save writes."""
        if isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[1], type):
            return _Storage(str(getattr(pid[1], "name", "")), str(pid[2]))
        return None


def items(manifest: bytes) -> dict[str, list[Item]]:
    """By file. What is not understood is left out."""
    try:
        found = _load(manifest).state.get("storage_data")
        known = found.items() if isinstance(found, dict) else ()
        return _by_file((key.state.get("fqn"), value.state) for key, value in known)
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


def _load(data: bytes) -> Any:
    """Raises TypeError for what is no such pickle."""
    try:
        return _Unpickler(data).load()
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged one makes of it
        raise TypeError(str(error)) from None
