"""Files that a site gives to `understudy analyze`: unpacked, and as text, whatever system wrote them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

HEAD_BYTES = 8

_UNPACKED_BY: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda packed: gzip.GzipFile(fileobj=packed),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}
_PRINTED_BY = {
    b"\x28\xb5\x2f\xfd": "zstd -dc",  # Python 3.11 has no module for these two
    b"\x04\x22\x4d\x18": "lz4 -dc",
    b"LPKSHHRH": "journalctl -k -a -o json --file",
}


class InputError(Exception):
    """The file cannot be read; the message says why."""


@contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
    """The content of a file, packed or not, or of standard input ("-"). Raises InputError, also while it is read."""
    try:
        with ExitStack() as closing:
            raw: Any = sys.stdin.buffer if path == "-" else closing.enter_context(Path(path).open("rb"))
            packed: io.BufferedReader = io.BufferedReader(raw)
            yield _unpacked(packed, path, closing)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _unpacked(packed: io.BufferedReader, path: str, closing: ExitStack) -> io.BufferedReader:
    head = packed.peek(HEAD_BYTES)[:HEAD_BYTES]
    unpack = next((unpack for magic, unpack in _UNPACKED_BY.items() if head.startswith(magic)), None)
    if unpack is not None:
        return io.BufferedReader(closing.enter_context(unpack(packed)))
    if command := next((command for magic, command in _PRINTED_BY.items() if head.startswith(magic)), ""):
        raise InputError(f"{path}: cannot be read as it is: run `{command} {path}` and analyze what it prints")
    return packed


def text_of(binary: io.BufferedReader, newline: str) -> IO[str]:
    """UTF-8 with or without a byte order mark, or UTF-16, as PowerShell writes it. What is no text is replaced."""
    head = binary.peek(4)[:4]
    encoding = "utf-8-sig"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif len(head) == 4 and [byte == 0 for byte in head] == [False, True, False, True]:
        encoding = "utf-16-le"
    return io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline=newline)
