"""One record of a log in, the kernel's message out, with machine and time as far as the record names them. Pure.

A message counts only if the kernel wrote it. Programs print what their users choose, so no message is searched for in a
record: all that stands before it must be understood (`_Before`).
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from understudy_controlplane.cli.analyze.log_records import Fields, Record
from understudy_controlplane.detect.node_log import kernel_row_name
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_wire.kernel_line import is_about_a_device, is_of_the_kernel

KERNEL_FACILITY, OTHER_FACILITY = 0, 1
BY_A_PROGRAM = "a program wrote it, not the kernel"

_NOT_ONE_MACHINE = frozenset({"", "-", "localhost", "(none)", "localhost.localdomain"})
"""Names that many machines have."""


@dataclass(frozen=True, slots=True)
class Time:
    at: float  # seconds: since the epoch, or since the machine's start
    shown: str  # as it was logged
    is_wall: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the kernel that means something, or the first of a boot."""

    text: str
    host: str = ""
    time: Time | None = None
    boot: str = ""  # the journal's id
    goes_on: bool = False  # a further line of the record before
    starts: bool = False  # the machine's start, which means nothing else


@dataclass(frozen=True, slots=True)
class Unread:
    why: str


class Reader:
    """Reads the records of a file in their order."""

    def __init__(self, now: float) -> None:
        self._now = now  # a time without a year is the last such time before it
        self._begun: dict[tuple[str, str], Message] = {}  # machine and label → what an indented line goes on with

    def read(self, record: Record) -> Message | Unread | None:
        """None: nothing in the record is about a fault."""
        if record.fields is not None:
            found = _of_fields(record.fields, self._now)
            self._begun.clear()
        else:
            found = self._of_line(record.text, record.machine)
        if isinstance(found, Message) and found.host.lower() in _NOT_ONE_MACHINE:
            return replace(found, host=record.machine)
        return found

    def _of_line(self, line: str, machine: str) -> Message | Unread | None:
        labelled = _LABEL.match(line)
        of = (machine, labelled[1] if labelled else "")
        rest = line[labelled.end() :] if labelled else line
        if rest[:1].isspace() and not _Before(line, self._now).understood:
            return self._goes_on(rest.strip(), self._begun.get(of))
        begun = self._begun.get((machine, ""))
        if line.startswith(_OF_A_RECORD) and begun is not None and begun.host:
            return self._goes_on(line, begun)
        found = _of_text(line.replace(_ESCAPED_BREAK, "\n"), self._now)
        self._begun.pop(of, None)
        if isinstance(found, Message):
            self._begun[of] = found
        return found

    def _goes_on(self, text: str, begun: Message | None) -> Message | Unread | None:
        if begun is None:
            return _unread(text, "it goes on with a line that the kernel did not write")
        return replace(begun, text=text, goes_on=True, starts=False) if _means_something(text) else None


_OF_A_RECORD = "NVRM: "
"""NVIDIA's driver writes records of several lines, and some syslogs leave the line breaks in their files."""

_ESCAPED_BREAK = "#012"
"""rsyslog's form of a line break within a message."""


_LABEL = re.compile(
    r"((?:[^\s\"'(){}<>|\[\]]|\[\d{1,9}[,-][\d,-]{0,200}\]){1,255}): "
)  # pdsh, clush, srun -l, talosctl
_LABELS = (
    re.compile(r"()\d{1,9}(?::(?=\S)|\t|\s?(?=\[))"),  # the number of a line: grep -n, cat -n, an editor
    _LABEL,
    re.compile(r"([^\s:\"'(){}<>|\[\]]{1,255}):(?:\d{1,9}:)?"),  # grep over several files
    re.compile(r"(\S{1,255})(?:\t|\s+\| )"),  # parallel --tag, docker compose
)
"""What a tool puts before each line of a machine's output."""


def _of_text(line: str, now: float) -> Message | Unread | None:
    before = _Before(line, now)
    message = before.message("") if before.understood else None
    if message is not None or before.by_kernel:
        return message
    for pattern in _LABELS:
        found = pattern.match(line)
        if found is not None and (behind := _Before(line[found.end() :], now)).understood:
            message = behind.message(found[1])
            if message is not None:
                return message
    if not before.understood and (_START.match(line) or _means_something(line)):
        return Message(line, starts=_START.match(line) is not None)
    return _unread(line, "what stands before the message is in no known form")


class _Before:
    """What stands before a message, read from the left: priority, times, host, `kernel:`."""

    def __init__(self, line: str, now: float) -> None:
        self._now = now
        self.host = ""
        self.facility: int | None = None
        self.clocks: list[Callable[[], Time | None]] = []  # most lines are about nothing: their times are not read
        self.is_rfc_5424 = False
        self.by_kernel = False
        self.ended = False
        self.understood = False
        self.rest = line
        while not self.ended and any(self._take(pattern, take) for pattern, take in _TOKENS):
            self.understood = True
        if self.understood:
            self._take(_SINCE_START, _Before.bracket)

    def _take(self, pattern: re.Pattern[str], take: Callable[[_Before, re.Match[str]], bool]) -> bool:
        found = pattern.match(self.rest)
        if found is None or not found[0] or not take(self, found):
            return False
        self.rest = self.rest[found.end() :]
        return True

    def message(self, label: str) -> Message | Unread | None:
        host = label if self.host.lower() in _NOT_ONE_MACHINE else self.host
        if _START.match(self.rest):
            return Message(self.rest, host, self.time(), starts=True)
        if _BLOB.match(self.rest):
            return Unread("journalctl left the text out, because a byte of it is no text: print it with --all")
        if not _means_something(self.rest):
            return None
        if self.facility not in (None, KERNEL_FACILITY):
            return Unread(BY_A_PROGRAM)
        return Message(self.rest, host, self.time())

    def time(self) -> Time | None:
        """What a wall clock showed, or else the time since the machine's start."""
        times = [time for clock in self.clocks if (time := clock()) is not None]
        return next((time for time in times if time.is_wall), times[0] if times else None)

    def priority(self, found: re.Match[str]) -> bool:
        if found["priority"]:
            self.facility = int(found["priority"]) >> 3
        self.is_rfc_5424 = bool(found["version"])
        return True

    def kmsg(self, found: re.Match[str]) -> bool:
        text = self.rest[found.end() :]
        of_kernel = is_of_the_kernel(int(found["priority"]), found["flags"], text)
        self.facility = KERNEL_FACILITY if of_kernel else OTHER_FACILITY
        seconds = int(found["microseconds"]) / 1e6
        self.clocks.append(lambda: Time(seconds, f"{seconds:.6f}"))
        self.by_kernel = self.ended = True
        return True

    def named_facility(self, found: re.Match[str]) -> bool:
        self.facility = KERNEL_FACILITY if found["facility"] == "kern" else OTHER_FACILITY
        return True

    def iso(self, found: re.Match[str]) -> bool:
        self.clocks.append(partial(_iso_time, found))
        return True

    def bracket(self, found: re.Match[str]) -> bool:
        inside = found["inside"]
        if monotonic := _MONOTONIC.fullmatch(inside):
            seconds = monotonic["seconds"].replace(",", ".")
            self.clocks.append(lambda: Time(float(seconds), seconds))
        elif iso := _ISO.match(inside):
            self.clocks.append(partial(_iso_time, iso))
        elif _OF_DMESG.search(inside):
            self.clocks.append(partial(_named_time, inside.partition("<")[0], self._now))
        else:  # the name of the machine, or of the container
            self.host = self.host or inside
        return True

    def unix(self, found: re.Match[str]) -> bool:
        self.clocks.append(lambda: Time(float(found[1]), found[1], is_wall=True))
        return True

    def named_time(self, found: re.Match[str]) -> bool:
        """False unless it has a day, so that a line about something else is not taken for a time."""
        if self.clocks or not _DAY.search(found["day"]):
            return False
        self.clocks.append(partial(_named_time, found[0], self._now))
        return True

    def rfc_5424(self, found: re.Match[str]) -> bool:
        if not self.is_rfc_5424 or not self.clocks:
            return False
        self.host, self.by_kernel, self.ended = found["host"], found["program"] == "kernel", True
        if not self.by_kernel:
            self.facility = OTHER_FACILITY
        return True

    def kernel(self, found: re.Match[str]) -> bool:
        self.host, self.by_kernel, self.ended = found["host"] or "", True, True
        return True

    def container_stream(self, _: re.Match[str]) -> bool:
        return bool(self.clocks)


_ISO = re.compile(
    r"(?:[^\W\d]{2,6},? )?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(?: ?(Z|[+-]\d\d:?\d\d|[+-]\d\d\b|[A-Z]{3,5}))?(?=[\s\]:]|$)[ :]*"
)
_MONOTONIC = re.compile(r"\s*(?P<seconds>\d{1,10}[.,]\d{3,9})\s*(?:<[^<>]*>)?\s*")
_CLOCK = r"\d\d[:.]\d\d[:.]\d\d"
_DAY = re.compile(r"(?<!\d)(\d{1,2})(?!\d|[월月])")
_YEAR = re.compile(r"(?<!\d)\d{4}(?!\d)")
_BRACKET = re.compile(r"\[(?P<inside>[^\[\]]{0,40}\d[^\[\]]{0,40})\]:?\s*")
_OF_DMESG = re.compile(r"\d\d[:.]\d\d|^\s*(?:[TC]\d+|[<+].*)\s*$")
"""What dmesg has in brackets besides: a time, or the thread or processor that logged the message."""

_SINCE_START = re.compile(r"\[(?P<inside>\s*\d{1,10}\.\d{3,9})\]\s*")
_START = re.compile(r"Linux version \d")
"""The first words of every boot."""

_BLOB = re.compile(r"\[\d[\d.]*[BKMG] blob data\]$")
_STRUCTURED = r"(?:-|(?:\[(?:[^\]\\]|\\.)*\])+)"
_HOST = r"[\w.:%-]{1,255}"
_KERN = r"kern\.[a-z]{3,7}\s+"
"""Facility and level, as the syslog and the logread of BusyBox write them."""

_TOKENS: tuple[tuple[re.Pattern[str], Callable[[_Before, re.Match[str]], bool]], ...] = (
    (re.compile(r"(?:<(?P<priority>\d{1,3})>)?(?P<version>1 (?=\d{4}-\d\d-\d\dT))?"), _Before.priority),
    (
        re.compile(r"(?P<priority>\d{1,6}),\d{1,18},(?P<microseconds>\d{1,16}),(?P<flags>[^,;]*)[^;]*;"),
        _Before.kmsg,
    ),
    (
        re.compile(
            r"(?P<facility>[a-z]{2,8}\d?)\s*:\s*(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)\s*:\s*"
        ),
        _Before.named_facility,
    ),
    (_ISO, _Before.iso),
    (_BRACKET, _Before.bracket),
    (re.compile(r"(\d{10}\.\d{3,9})\s+"), _Before.unix),
    (re.compile(r"(?:stdout|stderr) [FP] "), _Before.container_stream),  # a container's log, as the kubelet writes it
    (
        re.compile(r"(?P<day>[^\[\]<>\"=:]{3,24}?)\s" + _CLOCK + r"(?:\.\d{1,9})?(?: (?:19|20)\d\d)?\s+"),
        _Before.named_time,
    ),
    (
        re.compile(
            rf"(?P<host>\S+) (?P<program>\S+) \S+ \S+ {_STRUCTURED}(?:\s+\ufeff?|$)",
        ),
        _Before.rfc_5424,
    ),
    (
        re.compile(
            rf"(?:(?!{_KERN})(?:{_HOST}[@/])?(?P<host>{_HOST})\s+"
            rf"(?:{_KERN})?kernel(?:\[[0-]\])?(?::\s*|\s+(?:- - {_STRUCTURED}\s+)?)"
            rf"|(?:{_KERN})?kernel(?:\[[0-]\])?:\s*)"
        ),
        _Before.kernel,
    ),
)

_MONTH_WORDS = """
ene gen ian jaan jan janv jän led oca sty tammi ιαν січ янв
feb febr fev févr helmi lut veebr úno şub φεβ лют фев
bře maalis mar mars mrt márc mär märts μαρ бер мар
abr apr april avril dub huhti kwi nis ápr απρ апр кві
kvě mag mai maj may mei máj touko μαΐ мая тра
cze giu haz iun juin jun juni juuni jún kesä čen ιουν июн чер
heinä iul juil jul juli juuli júl lip lug tem čec ιουλ июл лип
ago août aug avg ağu elo sie srp αυγ авг сер
eyl sep sept set syys szept wrz zář σεπ вер сен
eki loka oct okt ott out paź říj οκτ жов окт
kas lis marras nov νοε лис ноя
ara dec des dets dez dic déc gru joulu pro δεκ гру дек
"""  # noqa: RUF001
"""Short names of the months in glibc 2.36, one month a line: cs da de el en es et fi fr hu it nb nl pl pt ro ru sk sl
sv tr uk. Not Croatian: its `srp` is July and its `lis` October. Chinese, Japanese and Korean write a number.
"""
_MONTHS = {word: number for number, words in enumerate(_MONTH_WORDS.split("\n")) for word in words.split()}
_NUMBERED_MONTH = re.compile(r"(\d{1,2})\s?[月월]")
_WORD = re.compile(r"[^\W\d_]+")


def _iso_time(found: re.Match[str]) -> Time | None:
    zone = found[8] or "Z"
    offset = "+00:00" if zone.isalpha() else zone
    try:
        at = datetime.fromisoformat(f"{found[1]}-{found[2]}-{found[3]}T{found[4]}:{found[5]}:{found[6]}{offset}")
        return Time(at.timestamp() + float(f"0.{found[7] or 0}"), found[0].strip(" :"), is_wall=True)
    except (ValueError, OverflowError, OSError):  # no such day
        return None


def _named_time(text: str, now: float) -> Time | None:
    """A time with the name of its month, in whatever order and language: dmesg and journalctl translate both. A time
    without a year is the last such time.
    """
    clock, day = re.search(rf"({_CLOCK})(\.\d{{1,9}})?", text), _DAY.search(re.sub(_CLOCK, " ", text))
    numbered = _NUMBERED_MONTH.search(text)
    words = _WORD.findall(text)
    months = [_MONTHS[word] for word in map(str.casefold, words[1:] or words) if word in _MONTHS]  # `mar.` is a day too
    month = int(numbered[1]) if numbered else months[-1] if months else None
    if clock is None or day is None or month is None:
        return None
    year = _YEAR.search(text)
    hour, minute, second = (int(part) for part in re.split("[:.]", clock[1]))
    latest = time.gmtime(now + DAY_SECONDS).tm_year
    try:
        for one in (int(year[0]),) if year else (latest, latest - 1):
            at = calendar.timegm(datetime(one, month, int(day[1]), hour, minute, second).timetuple())
            if year or at <= now + DAY_SECONDS:
                return Time(at + float(clock[2] or 0), text.strip(), is_wall=True)
    except (ValueError, OverflowError):  # no such day
        pass
    return None


_TEXT_NAMES = ("message", "msg", "line", "log", "text", "body", "event.original", "textpayload", "syslogmessage")
_HOST_NAMES = (
    *("hostname", "host", "host.name", "nodename", "node", "node_name", "computer", "machine", "instance"),
    *("instance_id", "logstreamname"),
)
_TIME_NAMES = ("realtime_timestamp", "@timestamp", "timestamp", "time", "timereported", "ts", "date", "timegenerated")
_PROGRAM_NAMES = (
    *("syslog_identifier", "appname", "app_name", "app-name", "program", "programname", "ident", "identifier"),
    *("process.name", "processname", "syslogtag"),
)
_FACILITY_NAMES = ("syslog_facility", "facility", "fac", "syslog_facility_code")
"""How collectors name a field, without a leading underscore, in small letters."""


def _of_fields(fields: Fields, now: float) -> Message | Unread | None:
    """A message of the journal, or of a collector of logs."""
    named = _named(fields)
    text = _first(named, _TEXT_NAMES)
    facility, priority = _first(named, _FACILITY_NAMES), _first(named, ("pri",))
    of_kernel = (
        _first(named, ("transport",)) in ("", "kernel")
        and _first(named, _PROGRAM_NAMES).rstrip(":") in ("", "kernel")
        and facility in ("", "0", "kern")
        and not (priority.isdigit() and int(priority) >> 3 != KERNEL_FACILITY)
    )
    if not text:
        left_out = of_kernel and "message" in named and "transport" in named
        return (
            Unread("journalctl leaves a text of 4096 bytes or more out: print the journal with --all")
            if left_out
            else _unread(json.dumps(fields), "it stands in a field that has no known name")
        )
    found = _of_text(text.strip(), now)
    if found is not None and not of_kernel:
        return None if isinstance(found, Message) and found.starts else Unread(BY_A_PROGRAM)
    if not isinstance(found, Message):
        return found
    collected = _collected_time(_first(named, _TIME_NAMES), now)
    boot = _first(named, ("boot_id",))
    boot = boot if boot.strip("0") else ""  # systemd 252-rc1 gave messages of the kernel a boot of zeros
    host = found.host or _first(named, _HOST_NAMES) or _first(named, ("machine_id",)) or boot
    at = found.time if found.time is not None and found.time.is_wall else collected or found.time
    return replace(found, host=host, time=at, boot=boot)


def _named(fields: Fields) -> dict[str, str | None]:
    """Every field by its path and by each end of it; of equal ones, that with the shortest path."""
    named: dict[str, str | None] = {}
    for path, text in sorted(_flat(fields, ""), key=lambda one: one[0].count(".")):
        names = path.split(".")
        for start in range(len(names)):
            named.setdefault(".".join(names[start:]), text)
    return named


def _flat(fields: Fields, above: str) -> Iterator[tuple[str, str | None]]:
    for name, value in fields.items():
        path = f"{above}{str(name).lower().lstrip('_')}"
        if not isinstance(value, dict):
            yield path, _text(value)
        elif path.count(".") < FIELD_DEPTH_MAX:
            yield from _flat(value, f"{path}.")


FIELD_DEPTH_MAX = 4


def _text(value: Any) -> str | None:
    """The journal writes what is no text as a list of bytes, and a field that a message has twice as a list of both."""
    if isinstance(value, list):
        texts = (_of_bytes(one) if isinstance(one, list) else _text(one) for one in value)
        return _of_bytes(value) or next((text for text in texts if text), None)
    if value is None or isinstance(value, dict):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _of_bytes(value: list[Any]) -> str | None:
    if value and all(isinstance(one, int) and 0 <= one < 256 for one in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _first(named: dict[str, str | None], names: tuple[str, ...]) -> str:
    return next((text for name in names if (text := named.get(name))), "")


_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (0.0, 1.0))
"""Seconds since 1970 are below 1e11 until the year 5138: larger numbers count parts of a second."""


def _collected_time(text: str, now: float) -> Time | None:
    try:
        number = float(text)
        at = number / next(unit for least, unit in _UNITS if number >= least)
        is_wall = at > DAY_SECONDS * 3650
        return Time(at, datetime.fromtimestamp(at, UTC).isoformat() if is_wall else text, is_wall)
    except (ValueError, OverflowError, OSError, StopIteration):  # no number, or a year that no clock shows
        iso = _ISO.match(text)
        return _iso_time(iso) if iso else _named_time(text, now)


_DRIVERS_WORDS = re.compile(r"NVRM: |nvidia-nvswitch\d")
_WRITTEN_BY = re.compile(r"(?:.*\s)?[^\s\[\]:]+\[\d+\]:?\s")
_BEHIND = re.compile(r"(?:\bkernel(?:\[\d*\])?|\]):? ")
PLACES_MAX = 8
"""Places of a line where a message is looked for, to report that it was not read."""


def _unread(line: str, why: str) -> Unread | None:
    """Reports a message of the kernel that stands in a line behind something else. It does not count."""
    places = [found.start() for found in _DRIVERS_WORDS.finditer(line)][:PLACES_MAX]
    places += [found.end() for found in _BEHIND.finditer(line)][:PLACES_MAX]
    place = next((place for place in places if _means_something(line[place:])), None)
    if place is None:
        return None
    if line[:place] == "MESSAGE=":
        return Unread("journalctl -o verbose is not read: print the journal with -o json")
    return Unread(BY_A_PROGRAM if _WRITTEN_BY.match(line[:place]) else why)


def _means_something(text: str) -> bool:
    """It is one of the driver, or one that a row of the policy has."""
    return is_about_a_device(text) or bool(kernel_row_name(text))
