"""`understudy analyze kernel-log FILE`: what the control plane would find and decide from a kernel log.

Reads what dmesg, journalctl, syslog and /dev/kmsg write, with and without times, finds the driver's messages in the
lines, and applies the control plane's detection and decisions to them. Other lines are ignored.
"""

from __future__ import annotations

import calendar
import gzip
import json
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO

import click

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect.kernel_log import kernel_log
from understudy_controlplane.detect.node_log import NodeLog, kernel_row_name
from understudy_controlplane.detect.xid import Judged, burst_shown, judge_logs
from understudy_controlplane.fleet.counted import counted, times
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.finding import Finding, HardwareDetail
from understudy_controlplane.fleet.node import NodeRecord, NodeView, StoredKernelEvent
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import SlurmShown, Snapshot
from understudy_wire.facts import KernelEvent
from understudy_wire.kernel_line import is_about_a_device, is_of_the_kernel
from understudy_wire.values import TEXT_CHARACTERS_MAX

LINE_BYTES_MAX = 65_536
"""A longer line is read in pieces of this size."""

NAMELESS = "node"
"""The node of a log without host names."""

CLOCK_FALLS_BACK_SECONDS = 60.0

SHOWN_MAX = 50_000
"""Times kept as they were logged; above that, times that will not be shown are dropped."""

NOT_SETTLED_SECONDS = 86_400.0
"""The log is judged as if a day had passed since its end, so that nothing is pending."""

_ISO_TIME = r"(?:\S{2,6} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\s*(?:Z|[+-]\d\d:?\d\d|[A-Z]{3,5})?\s+"
_SYSLOG_TIME = r"\S{2,6}\s+\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})?\s+"
_BEFORE = re.compile(
    r"(?:<\d{1,3}>)?(?:kern\s*:\s*\w+\s*:\s*)?(?:" + _ISO_TIME + "|" + _SYSLOG_TIME + r")?"
    r"(?:\[[^\[\]]{0,40}\d[^\[\]]{0,40}\]\s*){0,3}"
    r"(?:(?P<host>[\w.-]{1,255})\s+kernel:\s+(?:\[\s*\d{1,10}\.\d{3,9}\]\s*)?|kernel:\s+)?"
)
"""All that may stand before a message of the kernel. What comes behind it is the message: users choose names that the
kernel prints in its messages, so no message is searched for.
"""

_KMSG = re.compile(r"(?P<priority>\d{1,6}),\d{1,18},(?P<microseconds>\d{1,16}),(?P<flags>[^,;]*)[^;]*;")
_MONOTONIC = re.compile(r"\[\s*(?P<seconds>\d{1,10}\.\d{3,9})\]")
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?")
_DAY = r"(?P<month>[A-Z][a-z]{2})\s+(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)"
_CTIME = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) " + _DAY + r" (?P<year>\d{4})")
_SYSLOG = re.compile(r"^(?:<\d{1,3}>)?" + _DAY + r"(?P<fraction>\.\d{1,9})?\s")
_START = re.compile(r"Linux version \d")
"""The first words of every boot."""

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}


class LogError(Exception):
    """The log cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A message of the driver, and what comes before it in the line."""

    text: str
    host: str
    at: float | None  # seconds; since the epoch, or since the machine's start
    shown: str  # the time as it was logged


@dataclass
class Reading:
    """The events of a log: for each host as many as the control plane keeps, however long the log is."""

    lines_total: int = 0
    lines: Counter[str] = field(default_factory=Counter)  # host → lines with a message of the driver
    logs: dict[str, NodeLog] = field(default_factory=dict)
    ended_at: float = 0.0  # the latest time
    shown: dict[tuple[str, float], str] = field(default_factory=dict)  # (host, time) → as it was logged
    shown_kept: int = 0  # how many were left when it was last pruned
    timed: bool = True  # every line had a time

    def add(self, event: StoredKernelEvent, shown: str) -> None:
        self.logs[event.node].add(event)
        self.ended_at = max(self.ended_at, event.event.at)
        self.shown.setdefault((event.node, event.event.at), shown)
        if len(self.shown) > max(SHOWN_MAX, 2 * self.shown_kept):
            begun = {(host, one.begun_at) for host, log in self.logs.items() for one in log.events(float("-inf"))}
            self.shown = {key: words for key, words in self.shown.items() if key in begun}
            self.shown_kept = len(self.shown)


@dataclass(frozen=True, slots=True)
class Analysis:
    reading: Reading
    judged: dict[str, list[Judged]]
    decisions: dict[str, list[Decision]]
    others: dict[str, list[Finding]]  # of lines without a code


def read_lines(path: str) -> Iterator[str]:
    """The lines of a file, plain or gzip, or of standard input ("-"). Raises LogError."""
    try:
        if path == "-":
            yield from _split(sys.stdin.buffer)
            return
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else Path(path).open("rb") as log:
            yield from _split(log)
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{path}: cannot be read: {error}") from error


def _split(log: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    while piece := log.readline(LINE_BYTES_MAX):
        yield piece.decode("utf-8", "replace").rstrip("\r\n")


def parse_line(line: str, year: int) -> Line | None:
    """The driver's message in a line of a log; None: there is none. `year` is for times without a year."""
    found = _from_json(line) if line.startswith("{") else None
    if found is not None:
        return found
    record = _KMSG.match(line)
    if record is not None:
        text = line[record.end() :]
        if not is_of_the_kernel(int(record["priority"]), record["flags"], text) or not _means_something(text):
            return None
        seconds = int(record["microseconds"]) / 1e6
        return Line(text, "", seconds, f"{seconds:.6f}")
    before = _BEFORE.match(line)
    if before is None or not _means_something(line[before.end() :]):
        return None
    at, shown = _time(before[0], year)
    return Line(line[before.end() :], before["host"] or "", at, shown)


def _means_something(text: str) -> bool:
    """It is one of the driver, or one that a row of the policy has."""
    return is_about_a_device(text) or bool(kernel_row_name(text))


def _from_json(line: str) -> Line | None:
    """A line of `journalctl -o json`."""
    try:
        entry = json.loads(line)
        text, host = str(entry["MESSAGE"]), str(entry.get("_HOSTNAME", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    try:
        at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6 if "__REALTIME_TIMESTAMP" in entry else None
        shown = "" if at is None else _utc(at)
    except (ValueError, TypeError, OverflowError, OSError):  # OSError: a year that this machine cannot represent
        at, shown = None, ""
    if entry.get("_TRANSPORT", "kernel") != "kernel" or not _means_something(text):
        return None
    return Line(text, host, at, shown)


def _time(prefix: str, year: int) -> tuple[float | None, str]:
    try:
        return _wall_time(prefix, year) or _since_start(prefix)
    except (ValueError, OverflowError):  # no such day
        return None, ""


def _wall_time(prefix: str, year: int) -> tuple[float, str] | None:
    iso = _ISO.search(prefix)
    if iso is not None:
        zone = (iso[8] or "+00:00").replace("Z", "+00:00")
        whole = datetime.fromisoformat(f"{iso[1]}-{iso[2]}-{iso[3]}T{iso[4]}:{iso[5]}:{iso[6]}{zone}")
        return whole.timestamp() + float(f"0.{iso[7] or 0}"), iso[0].strip()
    named = _CTIME.search(prefix) or _SYSLOG.match(prefix)
    if named is None or named["month"] not in _MONTHS:
        return None
    parts = named.groupdict()
    hour, minute, second = (int(part) for part in named["clock"].split(":"))
    day = datetime(int(parts.get("year") or year), _MONTHS[named["month"]], int(named["day"]), hour, minute, second)
    return calendar.timegm(day.timetuple()) + float(parts.get("fraction") or 0), named[0].strip(" [")


def _since_start(prefix: str) -> tuple[float | None, str]:
    found = _MONOTONIC.search(prefix)
    return (float(found["seconds"]), found["seconds"]) if found else (None, "")


def collect(lines: Iterable[str], year: int, silence_seconds: float) -> Reading:
    """Events of each host, as the control plane would have received them. Another kernel start message, or a clock
    that goes back, begins a new boot. `silence_seconds` ends a storm.
    """
    reading = Reading()
    boots: dict[str, int] = {}
    latest: dict[str, float] = {}
    host = NAMELESS
    in_record = False  # the line before was the driver's, so that an indented one may belong to it
    for raw in lines:
        reading.lines_total += 1
        indented = raw[:1].isspace()
        line = parse_line(raw.lstrip(), year) if not indented or in_record else None
        in_record = line is not None
        if line is None:
            before = _KMSG.match(raw) or _BEFORE.match(raw)
            if before is not None and _START.match(raw, before.end()):
                host = before.groupdict().get("host") or NAMELESS
                boots[host] = boots.get(host, -1) + 1
                latest.pop(host, None)
            continue
        goes_on = indented and line.at is None  # a further line of the same record
        host = line.host or (host if goes_on else NAMELESS)
        reading.timed = reading.timed and (goes_on or line.at is not None)
        at = latest.get(host, 0.0) if line.at is None else line.at
        if at < latest.get(host, at) - CLOCK_FALLS_BACK_SECONDS:
            boots[host] = boots.get(host, 0) + 1
        latest[host] = at
        boots.setdefault(host, 0)
        if host not in reading.logs:
            reading.logs[host] = NodeLog(silence_seconds)
        reading.lines[host] += 1
        number = reading.lines[host]
        event = KernelEvent(f"boot-{boots[host]}", number, at, line.text[:TEXT_CHARACTERS_MAX])
        reading.add(StoredKernelEvent(number, host, at, event), line.shown)
    return reading


def analyze(reading: Reading, config: Config, driver: str = "") -> Analysis:
    """The control plane's detection and decisions, one node after the other."""
    nodes = {host: _view(host, log.events(float("-inf")), driver) for host, log in reading.logs.items()}
    snapshot = _snapshot(nodes, reading.ended_at + NOT_SETTLED_SECONDS)
    # Each boot by itself: messages of an earlier boot are judged as they were then.
    judged: dict[str, list[Judged]] = {host: [] for host in nodes}
    others: dict[str, list[Finding]] = {host: [] for host in nodes}
    for boot in sorted({event.event.boot_id for node in nodes.values() for event in node.history}, key=_boot_number):
        then = {
            host: replace(node, boot_id=boot, events=tuple(one for one in node.history if one.event.boot_id == boot))
            for host, node in nodes.items()
        }
        for host, found in judge_logs(replace(snapshot, nodes=then), config.xid).items():
            judged[host] += found
        for finding in kernel_log(replace(snapshot, nodes=then, now=reading.ended_at), config.xid):
            others[finding.node].append(finding)
    decisions = {
        host: [one for one in _decide(snapshot, node, judged[host], others[host], config) if one.subject == host]
        for host, node in nodes.items()
    }
    return Analysis(reading, judged, decisions, others)


def _decide(
    snapshot: Snapshot, node: NodeView, judged: Sequence[Judged], others: Sequence[Finding], config: Config
) -> list[Decision]:
    """Decisions from the findings of its last boot, as if it were the only node."""
    findings = [one.finding for one in judged if one.reading.stored.event.boot_id == node.boot_id]
    findings += [one for one in others if isinstance(one.detail, HardwareDetail) and one.detail.boot_id == node.boot_id]
    return decide(replace(snapshot, nodes={node.name: node}), findings, config)


def _boot_number(boot_id: str) -> int:
    return int(boot_id.removeprefix("boot-"))


def _view(host: str, events: Sequence[StoredKernelEvent], driver: str) -> NodeView:
    boot = max((event.event.boot_id for event in events), key=_boot_number, default="boot-0")
    slurm = SlurmNode(host, "", 0, "IDLE", frozenset(), ())
    record = NodeRecord(host, cleared_at=float("-inf"))
    return NodeView(record, slurm, 0.0, boot_id=boot, history=tuple(events), driver_version=driver)


def _snapshot(nodes: dict[str, NodeView], now: float) -> Snapshot:
    return Snapshot(
        now=now,
        started_at=now - NOT_SETTLED_SECONDS,
        mode=Mode.ACT,
        nodes=nodes,
        jobs={},
        slurm=SlurmShown(read_at=now),
    )


def as_record(analysis: Analysis) -> Json:
    """The analysis, for JSON."""
    return {
        "lines": analysis.reading.lines_total,
        "timed": analysis.reading.timed,
        "nodes": [
            {
                "node": host,
                "lines": analysis.reading.lines[host],
                "events": [_event_record(analysis.reading, host, one) for one in analysis.judged[host]],
                "bursts": _burst_records(analysis.judged[host]),
                "others": [_other_record(analysis.reading, one) for one in analysis.others[host]],
                "next": _next_record(analysis.decisions[host]),
            }
            for host in analysis.reading.logs
        ],
    }


def _event_record(reading: Reading, host: str, one: Judged) -> dict[str, Json]:
    stored = one.reading.stored
    return {
        "time": reading.shown.get((host, stored.begun_at), ""),
        "at": stored.begun_at if reading.timed else None,
        "rule": one.finding.rule,
        "signal": one.finding.signal.value,
        "summary": one.finding.summary,
        **one.finding.evidence.shown(),
    }


def _other_record(reading: Reading, one: Finding) -> dict[str, Json]:
    return {
        "time": reading.shown.get((one.node, one.at), ""),
        "at": one.at if reading.timed else None,
        "rule": one.rule,
        "signal": one.signal.value,
        "summary": one.summary,
        **one.evidence.shown(),
    }


def _bursts(judged: Sequence[Judged]) -> list[list[Judged]]:
    groups: dict[tuple[str, float], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.reading.stored.event.boot_id, one.burst.since), []).append(one)
    return list(groups.values())


def _burst_records(judged: Sequence[Judged]) -> list[Json]:
    return [
        {
            "boot_id": group[0].reading.stored.event.boot_id,
            "rules": [one.finding.rule for one in group],
            **burst_shown(group[0].burst),
        }
        for group in _bursts(judged)
    ]


def _repair(decision: Decision) -> str | None:
    detail = decision.finding.detail if decision.finding else None
    return detail.repair.value if isinstance(detail, HardwareDetail) and detail.repair is not None else None


def _next_record(decisions: Sequence[Decision]) -> dict[str, Json]:
    """The decision that would act on the node, or would if no guard prevented it."""
    chosen = next((one for one in decisions if one.to_state or one.opens_incident), None)
    return {
        "action": chosen.action.value if chosen else Action.NOTHING.value,
        "row": chosen.row if chosen else None,
        "state": chosen.to_state.value if chosen and chosen.to_state else "in_service",
        "repair": _repair(chosen) if chosen else "none",
        "reason": chosen.reason if chosen else "no finding is against the node",
    }


COLOURS = {
    "hardware_fault": "red",
    "drain_at_job_end": "red",
    "health_suspected": "yellow",
    "application_fault": "cyan",
}


def lines(analysis: Analysis) -> Iterator[str]:
    reading = analysis.reading
    found = sum(one.reading.stored.count for judged in analysis.judged.values() for one in judged)
    found += sum(len(others) for others in analysis.others.values())
    shown = f"{counted(found, 'event')} of GPUs or switches on {counted(len(reading.logs), 'node')}"
    yield f"{counted(reading.lines_total, 'line')}, {shown}"
    if found and not reading.timed:
        yield "not every line has a time: lines without a time get that of the line before"
    for host, judged in analysis.judged.items():
        yield click.style(f"\n{host}", bold=True)
        for number, group in enumerate(_bursts(judged), 1):
            yield from _burst_lines(reading, host, number, group)
        for one in analysis.others[host]:
            when = reading.shown.get((host, one.at), "")
            yield f"{when} {_coloured(one.signal.value)} {one.rule}: {one_line(one.summary)}"
        yield from _next_lines(analysis.decisions[host])


def _coloured(signal: str) -> str:
    return click.style(signal, fg=COLOURS.get(signal))


def _burst_lines(reading: Reading, host: str, number: int, group: Sequence[Judged]) -> Iterator[str]:
    burst = group[0].burst
    blamed = f"to blame: {burst.blamed.name} on {burst.blamed.device}" if burst.blamed else "no hardware fault"
    yield f"burst {number}, {counted(burst.events, 'event')} in {burst.until - burst.since:.1f} s; {one_line(blamed)}"
    for one in group:
        stored, signal = one.reading.stored, one.finding.signal.value
        often = f", {times(stored.count)}," if stored.count > 1 else ""
        when = reading.shown.get((host, stored.begun_at), "")
        event = one_line(f"{when} {one.reading.name}{often} on {one.reading.device}")
        yield f"  {event}: {_coloured(signal)}, repair {one.reading.verdict.repair.value}: {one_line(one.why)}"


def _next_lines(decisions: Sequence[Decision]) -> Iterator[str]:
    following = _next_record(decisions)
    if following["row"] is None:
        yield "next: nothing: the node stays in service"
        return
    what = f"{following['action']} by row {following['row']}, the node becomes {following['state']}"
    yield f"next: {what}, repair {following['repair']}"
    yield f"      {one_line(str(following['reason']))}"


def this_year() -> int:
    return time.gmtime().tm_year


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
