"""Files of PyTorch's flight recorder, one of each rank, as its watchdog writes them after a time-out: who held up the
gang.

They are pickles, or JSON. What is read of a pickle has no classes and no calls: PyTorch writes numbers, texts, lists
and dictionaries alone (seen with 2.13).
"""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec

from understudy import recorder
from understudy_controlplane.detect.hang_verdict import Cause, RankShown, Verdict, ranks_shown, verdict
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.plain_text import one_line
from understudy_wire.ranks import Recorder

BYTES_MAX = 256 * 2**20
FILES_MAX = 65_536
SPREAD_SECONDS = 900.0
_RANK = re.compile(r"(.*?)(\d{1,9})(?:\.json)?")
_RANKS = re.compile(r"\d{1,9}")
MEMORY_SHARE_MAX = 128
"""Bytes in memory for each byte of a file, if each list were there as often as it is used; 26 with gloo's entries."""


class RecorderFileError(Exception):
    """Its text is for people, and may name what a file has."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class _Reader(pickle._Unpickler):
    """Python's own reader in Python: that in C reserves gigabytes for a few bytes that number an element of its memory.
    Tuples become lists, which are no keys: to hash one that is made of shared ones may take for ever.
    """

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise RecorderFileError(f"it names {module_name}.{global_name}: PyTorch's recorder writes no classes")

    def load_as_list(self) -> None:
        self.append(self.pop_mark())

    def load_last_as_list(self, count: int) -> None:
        self.stack[-count:] = [self.stack[-count:]]

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]]
        for code in (
            *(pickle.PROTO, pickle.FRAME, pickle.MARK, pickle.STOP, pickle.GLOBAL, pickle.STACK_GLOBAL),
            *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
            *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
            *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.FLOAT, pickle.BINFLOAT),
            *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
            *(pickle.LONG, pickle.LONG1, pickle.LONG4),
            *(pickle.UNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
            *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS),
            *(pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS),
        )
    } | {
        pickle.EMPTY_TUPLE[0]: pickle._Unpickler.dispatch[pickle.EMPTY_LIST[0]],
        pickle.TUPLE[0]: load_as_list,
        pickle.TUPLE1[0]: lambda self: self.load_last_as_list(1),
        pickle.TUPLE2[0]: lambda self: self.load_last_as_list(2),
        pickle.TUPLE3[0]: lambda self: self.load_last_as_list(3),
    }


@dataclass(frozen=True, slots=True)
class HangAnalysis:
    verdict: Verdict
    ranks: int  # with a file
    absent: tuple[int, ...]  # ranks of the gang without one, as far as its size is known
    notes: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        return {
            "cause": self.verdict.cause.value,
            "ranks": [*self.verdict.ranks],
            "group": self.verdict.group,
            "why": self.verdict.why,
            "ranks_read": self.ranks,
            "ranks_without_file": [*self.absent],
            "notes": [*self.notes],
        }


def analyze_hang(paths: Sequence[Path]) -> HangAnalysis:
    """Raises RecorderFileError."""
    files = _by_rank(paths)
    contents = {rank: read(path) for rank, path in sorted(files.items())}
    size = max([*(_size(one) for one in contents.values()), max(contents) + 1])
    absent = tuple(rank for rank in range(size) if rank not in contents)
    shown = [RankShown(rank, _shown(contents.get(rank))) for rank in range(size)]
    unread = [one.rank for one in shown if one.recorder is None and one.rank in contents]
    notes = [f"the entries of {ranks_shown(unread)} are not understood"] if unread else []
    return HangAnalysis(verdict(shown), len(contents), absent, (*notes, *_notes(files)))


def read(path: Path) -> Mapping[str, Any]:
    """Raises RecorderFileError."""
    try:
        with path.open("rb") as file:
            content = _content(file)
    except OSError as error:
        raise RecorderFileError(f"{path}: {error.strerror}") from error
    except Exception as error:
        raise RecorderFileError(f"{path} is no file of PyTorch's flight recorder: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise RecorderFileError(f"{path} is no file of PyTorch's flight recorder")
    return content


def _content(file: BinaryIO) -> Any:
    size = file.seek(0, io.SEEK_END)
    if size > BYTES_MAX:
        raise RecorderFileError(f"it has more than {BYTES_MAX} bytes")
    file.seek(0)
    begins = file.read(1)
    file.seek(0)
    if begins == b"{":
        return json.load(file)
    content = _Reader(io.BytesIO(file.read())).load()
    _check_shared(content, MEMORY_SHARE_MAX * size)
    return content


def _check_shared(content: object, bytes_max: int) -> None:
    """Lists of one and the same list cost nothing until they are written as text. Stack traces, which PyTorch shares,
    are not used. Raises RecorderFileError.
    """
    left, unseen = bytes_max, [content]
    while unseen:
        one = unseen.pop()
        left -= sys.getsizeof(one)
        if left < 0:
            raise RecorderFileError("it uses the same lists again and again")
        if isinstance(one, dict):
            unseen += (*one, *(value for name, value in one.items() if name != "frames"))
        elif isinstance(one, list):
            unseen += one


def _by_rank(paths: Sequence[Path]) -> dict[int, Path]:
    found: dict[int, Path] = {}
    prefixes: dict[str, None] = {}
    for path in _files(paths):
        name = _RANK.fullmatch(path.name)
        if name is None:
            continue
        rank = int(name.group(2))
        prefixes[str(path.parent / name.group(1))] = None
        if rank in found and len(prefixes) == 1:
            raise RecorderFileError(f"{found[rank]} and {path} are of the same rank; name one of them")
        found[rank] = path
    if not found:
        raise RecorderFileError("no file has a name that ends in the number of a rank")
    if len(prefixes) > 1:
        raise RecorderFileError(f"files have several names ({', '.join([*prefixes][:3])}); name those of one gang")
    if len(found) > FILES_MAX or max(found) >= FILES_MAX:
        raise RecorderFileError(f"more than {FILES_MAX} ranks")
    return found


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise RecorderFileError(f"{path} does not exist")
        yield from sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]


def _size(content: Mapping[str, Any]) -> int:
    """World size, as far as the file says."""
    groups = content.get("pg_config")
    known = [one.get("ranks") for one in groups.values() if isinstance(one, dict)] if isinstance(groups, dict) else []
    texts = [one for one in known if isinstance(one, str)]
    return max((min(int(rank) + 1, FILES_MAX) for text in texts for rank in _RANKS.findall(text)), default=1)


def _shown(content: Mapping[str, Any] | None) -> Recorder | None:
    if content is None:
        return None
    try:
        return msgspec.convert({**recorder.places(content), "still": True}, Recorder)
    except (
        msgspec.ValidationError,
        LookupError,
        ArithmeticError,
        RecursionError,
        TypeError,
        ValueError,
        AttributeError,
    ):
        return None  # another release of PyTorch


def _notes(files: Mapping[int, Path]) -> Iterator[str]:
    written = [path.stat().st_mtime for path in files.values()]
    spread = max(written) - min(written)
    if spread > SPREAD_SECONDS:
        yield f"the files were written over {spread / 60:.0f} minutes: they may be of several attempts"


def lines(found: HangAnalysis) -> Iterator[str]:
    yield f"{counted(found.ranks, 'rank')} read"
    if found.absent:
        yield f"no file of {ranks_shown(found.absent)}: the process may have ended, or hang where no file is written"
    yield from found.notes
    yield found.verdict.why or "what the files show names no rank"
    if found.verdict.cause is not Cause.NOT_KNOWN and found.verdict.ranks:
        yield f"named: {ranks_shown(found.verdict.ranks)}; the files show no process, so no node is a suspect for that"
