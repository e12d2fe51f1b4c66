"""`understudy analyze kernel-log FILE`: what the control plane would find and decide from a kernel log.

Finds the kernel's messages about faults in the file (`log_records`, `log_messages`) and applies the control plane's
detection and decisions to them. Machines that the log does not name are not merged, lines without a time are not
joined to a burst, and a message that could not be read is reported.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import click

from understudy_controlplane.cli.analyze.log_messages import Message, Reader, Unread
from understudy_controlplane.cli.analyze.log_records import Record
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.ladder import LADDER, RUNGS
from understudy_controlplane.detect.kernel_log import kernel_log
from understudy_controlplane.detect.node_log import NodeLog, kernel_row_name
from understudy_controlplane.detect.xid import Judged, burst_shown, judge_logs
from understudy_controlplane.fleet.counted import counted, times
from understudy_controlplane.fleet.decision import Action, Decision
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.finding import ACCUSING, Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeRecord, NodeView, StoredKernelEvent
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.snapshot import SlurmShown, Snapshot
from understudy_controlplane.xid_policy import Repair
from understudy_wire.facts import KernelEvent
from understudy_wire.kernel_line import decode
from understudy_wire.values import TEXT_CHARACTERS_MAX

NAMELESS = "node"
"""The machine of a log that names none."""

CLOCK_FALLS_BACK_SECONDS = 60.0

SEQUENCE_STEP = 1_000_000
"""Lines of one second that keep their order."""

SHOWN_MAX = 50_000
"""Times kept as they were logged; above that, times that will not be shown are dropped."""

NOT_SETTLED_SECONDS = 86_400.0
"""The log is judged as if a day had passed since its end, so that nothing is pending."""

DRIVERS = re.compile(r"\b(mlx5_core|nvme|EDAC|LustreError)[ :]")
"""Lines of these that no rule reads are counted: a reader who sees them in the log must not miss them here."""

UNREAD_SHOWN = 5
LOGGED_CHARACTERS_MAX = 160
"""How many messages that were not read are shown, and how much of each."""


@dataclass
class Source:
    """Lines that are judged together: with or without a time, of a machine, or of a part of a log without names."""

    host: str
    named: bool
    timed: bool
    log: NodeLog
    lines: int = 0
    ended_at: float = 0.0  # the latest time


@dataclass
class Reading:
    """The events of a log: for each machine as many as the control plane keeps, however long the log is."""

    lines_total: int = 0
    sources: dict[str, Source] = field(default_factory=dict)
    shown: dict[tuple[str, float], str] = field(default_factory=dict)  # (source, time) → as it was logged
    shown_kept: int = 0  # how many were left when it was last pruned
    unread: Counter[str] = field(default_factory=Counter)  # reason → messages
    unread_first: list[tuple[Record, str]] = field(default_factory=list)
    without_rule: Counter[str] = field(default_factory=Counter)  # driver → lines

    @property
    def timed(self) -> bool:
        return all(source.timed for source in self.sources.values())

    @property
    def ended_at(self) -> float:
        return max((source.ended_at for source in self.sources.values()), default=0.0)

    def add(self, event: StoredKernelEvent, shown: str) -> None:
        source = self.sources[event.node]
        source.log.add(event)
        source.ended_at = max(source.ended_at, event.event.at)
        self.shown.setdefault((event.node, event.event.at), shown)
        if len(self.shown) > max(SHOWN_MAX, 2 * self.shown_kept):
            begun = {(key, one.begun_at) for key, of in self.sources.items() for one in of.log.events(float("-inf"))}
            self.shown = {key: words for key, words in self.shown.items() if key in begun}
            self.shown_kept = len(self.shown)

    def not_read(self, record: Record, why: str) -> None:
        self.unread[why] += 1
        if len(self.unread_first) < UNREAD_SHOWN:
            self.unread_first.append((record, why))

    def pass_over(self, record: Record) -> None:
        texts = [record.text] if record.fields is None else [one for one in record.fields.values() if type(one) is str]
        found = next((found for text in texts if (found := DRIVERS.search(text))), None)
        if found is not None:
            self.without_rule[found[1]] += 1


@dataclass(frozen=True, slots=True)
class Following:
    """The decision that would act on the node, or would if no guard prevented it."""

    decision: Decision
    repair: Repair | None
    reason: str


@dataclass(frozen=True, slots=True)
class Analysis:
    reading: Reading
    judged: dict[str, list[Judged]]
    following: dict[str, Following | None]  # None: nothing follows
    others: dict[str, list[Finding]]  # of lines without a code


def collect(records: Iterable[Record], now: float, silence_seconds: float) -> Reading:
    """Events of each machine, as the control plane would have received them. `silence_seconds` ends a storm; of a time
    without a year, the last one before `now` counts.
    """
    reading, reader = Reading(), Reader(now)
    sorted_in = _Sources(reading, silence_seconds)
    for record in records:
        reading.lines_total = max(reading.lines_total, record.number)
        found = reader.read(record)
        if isinstance(found, Unread):
            reading.not_read(record, found.why)
        elif found is not None:
            sorted_in.add(found)
        else:
            reading.pass_over(record)
    return reading


class _Sources:
    """Keeps the lines of each machine and each boot apart.

    A clock that counts from the machine's start and goes back, the kernel's first message and the journal's boot id
    begin a new boot. In a log without names these may as well begin another machine's log: each part is one by itself.
    """

    def __init__(self, reading: Reading, silence_seconds: float) -> None:
        self._reading = reading
        self._silence = silence_seconds
        self._parts = 1
        self._boots: dict[str, list[str]] = {}  # machine → ids of its boots
        self._latest: dict[tuple[str, bool], float] = {}  # machine, and whether it is a wall clock's → its latest time
        self._untimed: dict[tuple[object, ...], int] = {}

    def add(self, message: Message) -> None:
        host = self._machine(message)
        if message.starts:
            return
        source = self._source(host, named=bool(message.host), timed=message.time is not None)
        source.lines += 1
        boots = self._boots[host]
        boot = boots.index(message.boot) if message.boot else len(boots) - 1
        if message.time is None:
            at, shown, sequence = self._apart(host, message), "", source.lines
        else:
            at, shown = message.time.at, message.time.shown
            # A log may begin with its end: what a wall clock shows is the order.
            sequence = int(at) * SEQUENCE_STEP + source.lines % SEQUENCE_STEP if message.time.is_wall else source.lines
        event = KernelEvent(f"boot-{boot}", sequence, at, message.text[:TEXT_CHARACTERS_MAX])
        self._reading.add(StoredKernelEvent(source.lines, _key(host, timed=source.timed), at, event), shown)

    def _machine(self, message: Message) -> str:
        host = message.host or self._part()
        begun = self._boots.setdefault(host, [])
        at = message.time.at if message.time is not None and not message.goes_on else None
        is_wall = message.time is not None and message.time.is_wall
        is_back = at is not None and at < self._latest.get((host, is_wall), at) - CLOCK_FALLS_BACK_SECONDS
        if not message.host and ((begun and message.starts) or is_back):
            self._parts += 1
            host = self._part()
            begun = self._boots.setdefault(host, [])
        if message.boot and message.boot not in begun:
            begun.append(message.boot)
        elif not begun or (not message.boot and (message.starts or (is_back and not is_wall))):
            begun.append("")
        if at is not None:
            self._latest[host, is_wall] = at
        return host

    def _part(self) -> str:
        return NAMELESS if self._parts == 1 else f"{NAMELESS} {self._parts}"

    def _source(self, host: str, *, named: bool, timed: bool) -> Source:
        key = _key(host, timed=timed)
        if key not in self._reading.sources:
            self._reading.sources[key] = Source(host, named, timed, NodeLog(self._silence))
        return self._reading.sources[key]

    def _apart(self, host: str, message: Message) -> float:
        """A time for a line that has none: the same for each line about one error of one GPU, and outside of every
        other burst. So nothing is counted as repeated, or as the echo of something else.
        """
        line = decode(message.text)
        error = (host, line.form, line.code, line.bus_id, kernel_row_name(message.text))
        number = self._untimed.setdefault(error, len(self._untimed))
        return number * 2 * self._silence


def _key(host: str, *, timed: bool) -> str:
    return host if timed else f"{host}, lines without a time"


def analyze(reading: Reading, config: Config, driver: str = "") -> Analysis:
    """The control plane's detection and decisions, one node after the other."""
    sources = reading.sources
    nodes = {key: _view(key, source.log.events(float("-inf")), driver) for key, source in sources.items()}
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
        for key, node in then.items():
            alone = replace(snapshot, nodes={key: node}, now=sources[key].ended_at)
            others[key] += kernel_log(alone, config.xid)
    following = {key: _following(sources[key], node, judged[key], others[key], config) for key, node in nodes.items()}
    return Analysis(reading, judged, following, others)


def _following(
    source: Source, node: NodeView, judged: Sequence[Judged], others: Sequence[Finding], config: Config
) -> Following | None:
    """What follows from the findings of the last boot. The repair ladder begins at the highest rung that one of them
    needs, as in the control plane.
    """
    findings = [one.finding for one in judged if one.reading.stored.event.boot_id == node.boot_id]
    findings += [one for one in others if isinstance(one.detail, HardwareDetail) and one.detail.boot_id == node.boot_id]
    suspected = [one for one in findings if one.signal is Signal.HEALTH_SUSPECTED]
    if suspected:  # any of them makes the node suspect: the worst is quoted
        worst = max(suspected, key=_rung)
        findings = [one for one in findings if one.signal is not Signal.HEALTH_SUSPECTED or one is worst]
    decisions = decide(_snapshot({node.name: node}, source.ended_at + NOT_SETTLED_SECONDS), findings, config)
    acts = (one for one in decisions if one.subject == node.name and (one.to_state or one.opens_incident))
    decision = next(acts, None)
    if decision is None:
        return None
    first = decision.finding
    if first is None or first.signal not in ACCUSING:
        return Following(decision, _repair(first), decision.reason)
    highest = max((first, *(one for one in findings if one.signal in ACCUSING)), key=_rung)
    reason = decision.reason if highest is first else f"{decision.reason}; {highest.summary}"
    return Following(decision, _repair(highest), reason)


def _repair(finding: Finding | None) -> Repair | None:
    return finding.detail.repair if finding and isinstance(finding.detail, HardwareDetail) else None


def _rung(finding: Finding) -> int:
    return LADDER.index(RUNGS[_repair(finding) or Repair.NONE])


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
    reading = analysis.reading
    return {
        "lines": reading.lines_total,
        "timed": reading.timed,
        "unread": {
            "messages": reading.unread.total(),
            "reasons": dict(reading.unread),
            "first": [
                {"line": record.number, "why": why, "text": _logged(record)} for record, why in reading.unread_first
            ],
        },
        "without_rule": dict(reading.without_rule),
        "notes": list(_notes(reading)),
        "nodes": [
            {
                "node": source.host,
                "named": source.named,
                "timed": source.timed,
                "lines": source.lines,
                "events": [
                    _event_record(reading, one.finding, one.reading.stored.begun_at) for one in analysis.judged[key]
                ],
                "bursts": _burst_records(analysis.judged[key], timed=source.timed),
                "others": [_event_record(reading, one, one.at) for one in analysis.others[key]],
                "next": _next_record(analysis.following[key]),
            }
            for key, source in reading.sources.items()
        ],
    }


def _event_record(reading: Reading, finding: Finding, at: float) -> dict[str, Json]:
    return {
        "time": reading.shown.get((finding.node, at), ""),
        "at": at if reading.sources[finding.node].timed else None,
        "rule": finding.rule,
        "signal": finding.signal.value,
        "summary": finding.summary,
        **finding.evidence.shown(),
    }


def _logged(record: Record) -> str:
    text = record.text if record.fields is None else json.dumps(record.fields, ensure_ascii=False)
    return one_line(text.strip()[:LOGGED_CHARACTERS_MAX])


def _notes(reading: Reading) -> Iterator[str]:
    unnamed = sum(not source.named and source.timed for source in reading.sources.values())
    if unnamed > 1:
        yield (
            f"the log names no machine, and its clock goes back or the kernel starts again: {unnamed} parts are judged "
            "apart, because each may be of another machine"
        )
    untimed = sum(source.lines for source in reading.sources.values() if not source.timed)
    if untimed:
        yield (
            f"no time can be read in {counted(untimed, 'line')}: each error is judged by itself, and what would follow "
            "if it came again is not counted"
        )


def _bursts(judged: Sequence[Judged]) -> list[list[Judged]]:
    groups: dict[tuple[str, float], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.reading.stored.event.boot_id, one.burst.since), []).append(one)
    return list(groups.values())


def _burst_records(judged: Sequence[Judged], *, timed: bool) -> list[Json]:
    return [
        {
            "boot_id": group[0].reading.stored.event.boot_id,
            "rules": [one.finding.rule for one in group],
            **burst_shown(group[0].burst),
            **({} if timed else {"since": None, "until": None}),
        }
        for group in _bursts(judged)
    ]


def _next_record(following: Following | None) -> dict[str, Json]:
    if following is None:
        what = {"action": Action.NOTHING.value, "row": None, "state": "in_service", "repair": "none"}
        return {**what, "reason": "no finding is against the node"}
    decision, repair = following.decision, following.repair
    return {
        "action": decision.action.value,
        "row": decision.row,
        "state": decision.to_state.value if decision.to_state else "in_service",
        "repair": repair.value if repair is not None else None,
        "reason": following.reason,
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
    hosts = {source.host for source in reading.sources.values()}
    yield f"{counted(reading.lines_total, 'line')}, {counted(found, 'event')} on {counted(len(hosts), 'node')}"
    yield from _notes(reading)
    yield from _unread_lines(reading)
    for driver, number in reading.without_rule.most_common():
        yield f"{counted(number, 'line')} of {driver} that no rule reads"
    table = " (`understudy help decisions`)"
    for key, judged in analysis.judged.items():
        unnamed = "" if reading.sources[key].named else " (the log names no machine)"
        yield click.style(f"\n{one_line(key)}{unnamed}", bold=True)
        for number, group in enumerate(_bursts(judged), 1):
            yield from _burst_lines(reading, key, number, group)
        for one in analysis.others[key]:
            when = reading.shown.get((key, one.at), "")
            yield f"{when} {_coloured(one.signal.value)} {one.rule}: {one_line(one.summary)}"
        yield from _next_lines(analysis.following[key], table)
        table = table if analysis.following[key] is None else ""


def _unread_lines(reading: Reading) -> Iterator[str]:
    for why, number in reading.unread.items():
        yield f"{counted(number, 'message')} not counted: {why}"
    for record, _ in reading.unread_first:
        yield f"  line {record.number}: {_logged(record)}"


def _coloured(signal: str) -> str:
    return click.style(signal, fg=COLOURS.get(signal))


def _burst_lines(reading: Reading, host: str, number: int, group: Sequence[Judged]) -> Iterator[str]:
    burst = group[0].burst
    blamed = f"to blame: {burst.blamed.name} on {burst.blamed.device}" if burst.blamed else "no hardware fault"
    took = f"in {burst.until - burst.since:.1f} s" if reading.sources[host].timed else "without a time"
    yield f"burst {number}, {counted(burst.events, 'event')} {took}; {one_line(blamed)}"
    for one in group:
        stored, signal = one.reading.stored, one.finding.signal.value
        often = f", {times(stored.count)}," if stored.count > 1 else ""
        when = reading.shown.get((host, stored.begun_at), "")
        event = one_line(f"{when} {one.reading.name}{often} on {one.reading.device}")
        yield f"  {event}: {_coloured(signal)}, repair {one.reading.verdict.repair.value}: {one_line(one.why)}"


def _next_lines(found: Following | None, table: str) -> Iterator[str]:
    """`table`: what to add to the number of a row."""
    following = _next_record(found)
    if found is None:
        yield "next: nothing: the node stays in service"
        return
    what = f"{following['action']} by row {following['row']}{table}, the node becomes {following['state']}"
    yield f"next: {what}, repair {following['repair']}"
    yield f"      {one_line(str(following['reason']))}"
