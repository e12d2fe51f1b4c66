"""Bursts: Xids on a node until it is silent are one incident. One fault in it is to blame; what followed from it is an
echo, and an echo condemns no node. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from understudy_controlplane.detect.line_verdict import RECORD, Verdict
from understudy_controlplane.fleet.node import StoredKernelEvent
from understudy_controlplane.xid_policy import EchoOf, FaultClass, PolicyRow
from understudy_wire.kernel_line import Form, KernelLine

RECOVERY_ACTION = 154
"""The driver's recovery action for another error; never a cause itself."""

CONDEMNING = frozenset({FaultClass.HARDWARE, FaultClass.DRAIN})


@dataclass(frozen=True, slots=True)
class Reading:
    """An event, its parsed line, and its verdict."""

    stored: StoredKernelEvent
    line: KernelLine
    row: PolicyRow | None
    verdict: Verdict
    by_driver: bool = False  # the verdict is the driver's own recovery action
    echo_of: str = ""  # the fault that it is an echo of; empty: it is none

    @property
    def meaning(self) -> str:
        return self.row.meaning if self.row else "no rule for this code"

    @property
    def name(self) -> str:
        if self.line.form is Form.LOST:
            return "GPU off the bus"
        return f"{'SXid' if self.line.form is Form.SXID else 'Xid'} {self.line.code}"

    @property
    def device(self) -> str:
        return f"{'switch' if self.line.form is Form.SXID else 'GPU'} {self.line.bus_id or 'unknown'}"

    @property
    def order(self) -> tuple[float, int]:
        return self.stored.begun_at, self.stored.event.sequence

    @property
    def of_a_link(self) -> bool:
        return self.row is not None and self.row.echo_of is EchoOf.PEER


@dataclass(frozen=True, slots=True)
class Burst:
    since: float
    until: float
    readings: tuple[Reading, ...]
    blamed: Reading | None  # None: nothing in it is a fault of the hardware
    events: int


def bursts(readings: Sequence[Reading], silence_seconds: float, echo_seconds: float) -> list[Burst]:
    """Oldest first; each reading is in one of them, echoes with a verdict of their own."""
    groups: list[list[Reading]] = []
    until = 0.0
    for reading in sorted(readings, key=lambda one: one.order):
        if not groups or reading.stored.begun_at - until > silence_seconds:
            groups.append([])
            until = reading.stored.event.at
        groups[-1].append(reading)
        until = max(until, reading.stored.event.at)
    return [_burst(group, echo_seconds) for group in groups]


def _burst(group: list[Reading], echo_seconds: float) -> Burst:
    blamed = _blamed(group)
    judged = tuple(_with_echo(reading, group, blamed, echo_seconds) for reading in group)
    return Burst(
        since=min(one.stored.begun_at for one in group),
        until=max(one.stored.event.at for one in group),
        readings=judged,
        blamed=blamed,
        events=sum(one.stored.count for one in group),
    )


def _blamed(group: list[Reading]) -> Reading | None:
    """The first fault of the hardware that is not of a link, which has two ends; if there is none, the first of a link.

    What follows a blamed fault by its own words is not the first.
    """
    faults = [one for one in group if one.verdict.fault in CONDEMNING and not _cause(one, group)]
    return next((one for one in faults if not one.of_a_link), faults[0] if faults else None)


def _with_echo(reading: Reading, group: list[Reading], blamed: Reading | None, echo_seconds: float) -> Reading:
    cause = _cause(reading, group) or _by_rule(reading, group, blamed, echo_seconds)
    if not cause or reading is blamed:
        return reading
    if reading.by_driver and reading.verdict.fault in CONDEMNING:
        return reading  # the driver itself says what this GPU needs: it is more than an echo
    return replace(reading, verdict=replace(RECORD, why=f"an echo of {cause}"), echo_of=cause)


def _cause(reading: Reading, group: list[Reading]) -> str:
    """According to the driver: "caused by previous Xid"; or the same fall off the bus, reported with its number."""
    line = reading.line
    if line.form is Form.LOST:
        return next((_named(one) for one in group if one.line.code == 79 and one.line.bus_id == line.bus_id), "")
    if line.caused_by is None:
        return ""
    before = (one for one in group if one.line.code == line.caused_by and one is not reading)
    return next((_named(one) for one in before), f"Xid {line.caused_by}")


def _by_rule(reading: Reading, group: list[Reading], blamed: Reading | None, echo_seconds: float) -> str:
    rule = reading.row.echo_of if reading.row else None
    if rule is EchoOf.PEER:
        return _of_peer(reading, blamed, echo_seconds)
    if rule is None:
        return ""
    for one in group:
        if one.line.code in (reading.line.code, RECOVERY_ACTION) or one.order > reading.order:
            continue
        near = reading.stored.begun_at - one.stored.event.at <= echo_seconds
        if near and (rule is EchoOf.ANY or one.of_a_link):
            return _named(one)
    return ""


def _of_peer(reading: Reading, blamed: Reading | None, echo_seconds: float) -> str:
    """A link has two ends: an error of one device is reported for all devices that it was connected with."""
    if blamed is None or blamed.line.bus_id == reading.line.bus_id:
        return ""
    before = blamed.stored.begun_at - reading.stored.event.at
    after = reading.stored.begun_at - blamed.stored.event.at
    if before > echo_seconds or (blamed.of_a_link and after > echo_seconds):
        return ""
    return _named(blamed)


def _named(reading: Reading) -> str:
    return f"{reading.name} on {reading.device}"
