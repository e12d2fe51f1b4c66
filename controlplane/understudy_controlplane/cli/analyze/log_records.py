"""A file with logs, taken apart: one record for each message.

Understands lines, the journal's export format, JSON (an object per line, or printed over many lines), and the headers
that tools put above the output of each machine.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from understudy_controlplane.cli.analyze.input_file import text_of
from understudy_controlplane.hostlist import HostListError, expand

LINE_CHARACTERS_MAX = 65_536
"""A longer line is read in pieces of this size."""

FIELD_BYTES_MAX = 768 * 2**20
"""Journald's own limit for a field (journal-importer.h)."""

DOCUMENT_CHARACTERS_MAX = 64 * 2**20

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A line of text, or the fields of one message."""

    number: int  # of its line in the file
    text: str = ""
    fields: Fields | None = None
    machine: str = ""  # named by a header above


_EXPORT = (b"__CURSOR=", b"__REALTIME_TIMESTAMP=")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_BEFORE_JSON = re.compile(r"(?:\x1e|data: )(?=\{)")
"""`journalctl -o json-seq` and `-o json-sse`."""

_STARTS_JSON = re.compile(r"\s*(?:\[\s*)*\{\s*(?:$|\"|\})|\s*\[\s*$")
_GOES_ON_AS_JSON = re.compile(r"\s*(?:\"|[\[\]{},]+\s*(?:$|\"|\{)|(?:-?\d[\d.eE+-]*|true|false|null)\s*[\]},]*\s*$)")
_STRING = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|$)')

_NUMBER = re.compile(r"\s*\d{1,7}(?:: |\t)")
"""`srun -l` pads the numbers of tasks, and `cat -n` those of lines."""

_RULE = re.compile(r"-{3,}\s*$")
_HEADERS = (
    re.compile(r"==> (\S.*?) <==\s*$"),  # head, tail
    re.compile(r"(\S+) \| [A-Z]+!?(?: \| rc=-?\d+)?\s*>>\s*$"),  # ansible
    re.compile(r"\[\d+\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (\S+)"),  # parallel-ssh
)
_BETWEEN_RULES = re.compile(r"(\S+)(?: \(\d+\))?\s*$")  # dshbak, clush -b
_ONE_LINE = re.compile(r"(\S+) \| [A-Z]+!? \| rc=-?\d+ \| \(stdout\) (.*)$")  # ansible -o


def records(binary: io.BufferedReader) -> Iterator[Record]:
    """Every line of a file belongs to a record."""
    if binary.peek(32).startswith(_EXPORT):
        yield from _exported(binary)
        return
    with text_of(binary, "\n") as text:
        yield from text_records(iter(lambda: text.readline(LINE_CHARACTERS_MAX), ""))


def _exported(binary: io.BufferedReader) -> Iterator[Record]:
    """`journalctl -o export`: `NAME=value`, or NAME, a length and that many bytes; an empty line ends a message."""
    fields: dict[str, Any] = {}
    number = begun = 1
    while line := binary.readline(FIELD_BYTES_MAX):
        name, is_text, value = line.rstrip(b"\n").partition(b"=")
        if not name:
            yield Record(begun, fields=fields)
            fields, begun = {}, number + 1
        elif not is_text:
            value = _binary_field(binary)
            number += value.count(b"\n") + 1
        fields.setdefault(name.decode("ascii", "replace"), value.decode("utf-8", "replace"))
        number += 1
    if fields:
        yield Record(begun, fields=fields)


def _binary_field(binary: io.BufferedReader) -> bytes:
    length = binary.read(8)
    if len(length) < 8 or (size := struct.unpack("<Q", length)[0]) > FIELD_BYTES_MAX:
        raise EOFError("a field of the journal's export format is damaged")
    value = binary.read(size + 1)
    if not value.endswith(b"\n"):
        raise EOFError("a field of the journal's export format is cut off")
    return value[:-1]


def text_records(lines: Iterable[str]) -> Iterator[Record]:
    machines: tuple[str, ...] = ("",)
    before = ("", "")  # the two lines before
    document = _Document()
    padding: re.Pattern[str] | None = None
    for number, raw in enumerate(lines, 1):
        line = _BEFORE_JSON.sub("", _COLOUR.sub("", raw.rstrip("\r\n")), count=1)
        if padding is None and line.strip():
            padding = _padding(line)
        if padding is not None:
            line = padding.sub("", line, count=1)
        yield from document.add(number, line, machines)
        if document.begun:
            continue
        named = next((found[1] for header in _HEADERS if (found := header.match(line))), "")
        if _RULE.match(line) and _RULE.match(before[0]) and (found := _BETWEEN_RULES.match(before[1])):
            named = found[1]
        if named:
            machines = _expanded(named)
        before = (before[1], line)
    yield from document.given_up()


def _padding(first: str) -> re.Pattern[str]:
    """What stands before each line, because it stands before the first. Other indented lines go on with a message."""
    if _NUMBER.match(first):
        return re.compile(rf"\s+(?={_NUMBER.pattern})")
    return re.compile(rf" {{{len(first) - len(first.lstrip(' '))}}}")


def _expanded(named: str) -> tuple[str, ...]:
    """Equal output of several machines is printed once, below a list of their names."""
    try:
        return expand(named) if "[" in named or "," in named else (named,)
    except HostListError:
        return (named,)


class _Document:
    """JSON over many lines. What only looked like it is given back as lines."""

    def __init__(self) -> None:
        self._lines: list[Record] = []
        self._depth = 0
        self._size = 0

    @property
    def begun(self) -> bool:
        return bool(self._lines)

    def add(self, number: int, line: str, machines: tuple[str, ...]) -> Iterator[Record]:
        """The records that are complete with this line."""
        if self.begun and (not self._can_go_on(line) or self._size > DOCUMENT_CHARACTERS_MAX):
            yield from self.given_up()
        if not self.begun and not _STARTS_JSON.match(line):
            one_line = _ONE_LINE.match(line)
            for piece in one_line[2].split("\\n") if one_line else (line,):
                for machine in (one_line[1],) if one_line else machines:
                    yield Record(number, piece, machine=machine)
            return
        self._lines += [Record(number, line, machine=machine) for machine in machines]
        without_strings = _STRING.sub("", line)
        self._depth += sum(map(without_strings.count, "{[")) - sum(map(without_strings.count, "}]"))
        self._size += len(line)
        if self._depth <= 0:
            yield from self._closed()

    def _can_go_on(self, line: str) -> bool:
        begins = line.lstrip().startswith("{")
        return bool(_GOES_ON_AS_JSON.match(line)) and (not begins or self._lines[-1].text.rstrip().endswith((*"[{,:",)))

    def _closed(self) -> Iterator[Record]:
        first = self._lines[0]
        try:
            value = json.loads("\n".join(one.text for one in self._lines if one.machine == first.machine))
            messages = list(_messages(value))
        except (ValueError, RecursionError):
            yield from self.given_up()
            return
        machines = dict.fromkeys(one.machine for one in self._lines)
        for fields in messages:
            for machine in machines:
                yield Record(first.number, fields=fields, machine=machine)
        self._clear()

    def given_up(self) -> Iterator[Record]:
        yield from self._lines
        self._clear()

    def _clear(self) -> None:
        self._lines, self._depth, self._size = [], 0, 0


def _messages(value: Any) -> Iterator[Fields]:
    """The objects in a list of messages, as dmesg and Elasticsearch print it, Loki's streams, or the object itself."""
    if isinstance(value, list):
        for one in value:
            yield from _messages(one)
    elif isinstance(value, dict) and isinstance(value.get("stream"), dict) and isinstance(value.get("values"), list):
        for one in value["values"]:
            if isinstance(one, list) and len(one) > 1:
                yield {**value["stream"], "timestamp": one[0], "line": one[1]}
    elif isinstance(value, dict):
        below = {name: one for name, one in value.items() if _holds_messages(one)}
        yield from _messages([*below.values()])
        if around := {name: one for name, one in value.items() if name not in below}:
            yield around


def _holds_messages(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and any(map(_holds_messages, value.values()))
