"""What a checkpoint's file says of its own length, and of the files that belong to it. No pickle is loaded."""

from __future__ import annotations

import json
import re
from typing import Any

SAFETENSORS_HEADER_BYTES_MAX = 100_000_000
"""safetensors' own limit."""

ZIP_START, ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
ZIP_TAIL_BYTES = 22 + 0xFFFF
"""The record at the end of a zip file, and its longest comment."""

_SHARD = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")


def safetensors_header_bytes(start: bytes, size: int) -> int:
    """Length of the header, of a file's first 8 bytes. Raises ValueError."""
    if len(start) < 8:
        raise ValueError("it has no header")
    length = int.from_bytes(start, "little")
    if length > min(size - 8, SAFETENSORS_HEADER_BYTES_MAX):
        raise ValueError(f"its header would have {length} bytes")
    return length


def safetensors_tensors(header: bytes, size: int) -> dict[str, Any]:
    """Tensors by name, of a file with `size` bytes. Raises ValueError: it is cut, or its header is none."""
    try:
        tensors = {name: one for name, one in json.loads(header).items() if name != "__metadata__"}
        described = 8 + len(header) + max((int(one["data_offsets"][1]) for one in tensors.values()), default=0)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise ValueError("its header describes no tensors") from None
    if described != size:
        raise ValueError(f"it has {size} bytes, its header describes {described}")
    return tensors


def zip_doubt(start: bytes, tail: bytes) -> str:
    """What speaks against a file that begins as a zip file does. torch.save writes the record at its end last."""
    if not start.startswith(ZIP_START):
        return ""
    at = tail.rfind(ZIP_END)
    ends = at >= 0 and at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)
    return "" if ends else "it has no end, as a zip file has: it is cut"


def shards_named(manifest: bytes) -> set[str]:
    """Files that torch.distributed.checkpoint's `.metadata` names, which is a pickle, or a part of it."""
    return {name.decode() for name in _SHARD.findall(manifest)}
