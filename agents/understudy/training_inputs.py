"""What this training runs with: its code, its configuration and its data, in a few characters each.

Nothing is executed for it, git neither: its hooks, filters and configuration may start programs. `.git` is read here.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FILES_MAX = 20_000
INDEX_BYTES_MAX = 16 << 20
FILE_BYTES_MAX = 64 << 20
READ_BYTES_MAX = 256 << 20
"""Most bytes that are read of files that are not as git's index names them."""
SECONDS_MAX = 10.0
SUM_CHARACTERS = 16
DATA_CHARACTERS_MAX = 255
FOLDERS_MAX = 64

SUBMODULE, LINK = 0o160000, 0o120000
SKIPPED, EXTENDED = 0x4000, 0x4000


class TrainingInputs(NamedTuple):
    """What is not known is empty."""

    code: str
    config: str
    data: str


class _Tracked(NamedTuple):
    path: bytes  # within the working tree
    mode: int
    size: int
    written_at: tuple[int, int]
    content: bytes  # its name in git


class _Unknown(Exception):
    """It takes too long, or git has written it in a form that is not read here."""


def training_inputs(config_file: str, data: str, environment: Mapping[str, str]) -> TrainingInputs:
    """Reads files of this process, for at most some SECONDS_MAX. Values of the environment are not looked at."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    version = str(data or environment.get("UNDERSTUDY_DATA_VERSION", ""))
    return TrainingInputs(
        code_of(Path(main)) if main else "",
        config_of(config_file or environment.get("UNDERSTUDY_CONFIG_FILE", ""), sys.argv[1:]),
        version.encode("utf-8", "replace").decode()[:DATA_CHARACTERS_MAX],  # the agent takes no other bytes
    )


def code_of(main: Path) -> str:
    """The commit that the working tree stands at, where git tracks the main script in one, and a sum of all files that
    it tracks, as they are now. Else the sum of the script.
    """
    try:
        script = main.resolve()
        top = next((one for one in list(script.parents)[:FOLDERS_MAX] if (one / ".git").exists()), None)
        found = "" if top is None else _of_working_tree(top, os.fsencode(script.relative_to(top)))
        return found or f"script {_sum([_read(script, FILE_BYTES_MAX)])}"
    except (OSError, _Unknown):
        return ""


def config_of(files: str, arguments: list[str]) -> str:
    """Sum of the files, separated by colons; where none is given, of the command line's arguments."""
    if not files:
        return f"arguments {_sum(os.fsencode(one) for one in arguments)}" if arguments else ""
    try:
        return f"file {_sum(_read(Path(one), FILE_BYTES_MAX) for one in files.split(os.pathsep))}"
    except (OSError, _Unknown):
        return ""


def _of_working_tree(top: Path, script: bytes) -> str:
    """Empty: git does not track the script there. Raises OSError and _Unknown."""
    own = _git_folder(top)
    commit = _commit(own)
    try:
        tracked = list(_index(_read(own / "index", INDEX_BYTES_MAX), len(commit) // 2 or 20))
        if all(one.path != script for one in tracked):
            return ""
        files, changed = _sum_of_files(top, tracked, len(commit) or 40)
    except _Unknown:
        return f"commit {commit}" if commit else ""
    return f"commit {commit or 'none'} files {files}{' changed' if changed else ''}"


def _git_folder(top: Path) -> Path:
    """A second working tree, or a submodule, has a file `.git` that names it."""
    place = top / ".git"
    if place.is_dir():
        return place
    name, _, folder = _read(place, 4096).decode("utf-8", "surrogateescape").partition(":")
    if name != "gitdir":
        raise _Unknown
    return top / folder.strip()


def _commit(own: Path) -> str:
    """Empty: there is none yet, or it is not found."""
    head = _text(own / "HEAD")
    if not head.startswith("ref:"):
        return _hexadecimal(head)
    name = head.partition(":")[2].strip()
    if not name.startswith("refs/") or ".." in name:
        return ""
    shared = own / (_text(own / "commondir") or ".")
    for folder in (own, shared):
        found = _hexadecimal(_text(folder / name))
        if found:
            return found
    for line in _text(shared / "packed-refs").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return _hexadecimal(commit)
    return ""


def _hexadecimal(text: str) -> str:
    return text if len(text) in (40, 64) and not set(text) - set("0123456789abcdef") else ""


def _index(data: bytes, length: int) -> Iterator[_Tracked]:
    """Its versions 2 and 3, with names of so many bytes (git's Documentation/gitformat-index)."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3) or count > FILES_MAX:
        raise _Unknown
    at = 12
    for _ in range(count):
        numbers = [int.from_bytes(data[at + first : at + first + 4], "big") for first in range(0, 40, 4)]
        flags = int.from_bytes(data[at + 40 + length : at + 42 + length], "big")
        begin = at + 42 + length
        is_skipped = False
        if flags & EXTENDED:
            is_skipped = bool(int.from_bytes(data[begin : begin + 2], "big") & SKIPPED)
            begin += 2
        end = data.find(b"\0", begin)
        if end < 0:
            raise _Unknown
        if not is_skipped and numbers[6] != SUBMODULE:
            yield _Tracked(
                data[begin:end], numbers[6], numbers[9], (numbers[2], numbers[3]), data[at + 40 : at + 40 + length]
            )
        at += (end - at) // 8 * 8 + 8
    if data[at : at + 4] in (b"link", b"sdir"):  # the rest is in another file, or left out
        raise _Unknown


def _sum_of_files(top: Path, tracked: list[_Tracked], digits: int) -> tuple[str, bool]:
    """And whether one is not as it was added or committed. A file that has the size and time of the index is not read,
    as git does. Raises _Unknown.
    """
    until, left = time.monotonic() + SECONDS_MAX, READ_BYTES_MAX
    changed, contents = False, []
    for one in tracked:
        if time.monotonic() > until:
            raise _Unknown
        place, content = top / os.fsdecode(one.path), one.content
        try:
            found = place.lstat()
            at = divmod(found.st_mtime_ns, 1_000_000_000)
            if (found.st_size & 0xFFFFFFFF, at[0] & 0xFFFFFFFF) != (one.size, one.written_at[0]) or (
                one.written_at[1] and at[1] != one.written_at[1]
            ):
                left -= found.st_size
                if left < 0:
                    raise _Unknown
                content = _named_by_git(place, one.mode, digits)
        except OSError:
            content = b""
        changed |= content != one.content
        contents += [one.path, content]
    return _sum(contents), changed


def _named_by_git(place: Path, mode: int, digits: int) -> bytes:
    data = os.fsencode(os.readlink(place)) if mode & 0o170000 == LINK else _read(place, FILE_BYTES_MAX)
    blob = b"blob %d\0" % len(data) + data
    made = hashlib.sha256(blob) if digits == 64 else hashlib.sha1(blob, usedforsecurity=False)
    return made.digest()


def _sum(parts: Iterator[bytes] | list[bytes]) -> str:
    """Each part counts by itself."""
    made = hashlib.sha256()
    for part in parts:
        made.update(b"%d:" % len(part) + part)
    return made.hexdigest()[:SUM_CHARACTERS]


def _text(place: Path) -> str:
    """Empty: it is not there."""
    try:
        return _read(place, INDEX_BYTES_MAX).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ""


def _read(place: Path, bytes_max: int) -> bytes:
    """Raises OSError; _Unknown for what is no file, or too large."""
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
            raise _Unknown
        return file.read(bytes_max)
