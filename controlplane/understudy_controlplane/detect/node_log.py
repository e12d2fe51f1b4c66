"""What is remembered of a node's kernel log: of a storm of lines that say the same, one with their number.

Storms are what bursts are made of (`detect.bursts`), and with the same silence between two of them no burst is seen
otherwise than it was.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from understudy_controlplane.detect.kernel_line import Form, KernelLine, decode
from understudy_controlplane.fleet.node import StoredKernelEvent

STORMS_OF_A_KIND_MAX = 30
KINDS_MAX = 500
"""Of one node. A log that is full of ever new rubbish must not fill the memory: the kind that was not seen for longest
goes first."""

LINES_ABOUT_ONE_GPU = 4
"""The driver names the GPU at most so many lines before it says what is wrong with it."""

_ABOUT_THE_LINE_BEFORE = frozenset({Form.LOST, Form.SERIAL})


class NodeLog:
    """Events go in as they arrive."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence = silence_seconds
        self._storms: dict[tuple[object, ...], list[StoredKernelEvent]] = {}
        self._named = ("", 0, "")  # boot, sequence, address

    def add(self, stored: StoredKernelEvent) -> None:
        line = read(stored)
        event = stored.event
        if line.form in (Form.GPU_NAMED, Form.IDENTITY) and line.bus_id:
            self._named = (event.boot_id, event.sequence, line.bus_id)
        elif line.form in _ABOUT_THE_LINE_BEFORE and not line.bus_id:
            boot_id, sequence, bus_id = self._named
            if boot_id == event.boot_id and 0 < event.sequence - sequence <= LINES_ABOUT_ONE_GPU:
                stored = replace(stored, event=msgspec.structs.replace(event, bus_id=bus_id))
        kind = (event.boot_id, read(stored).kind, stored.jobs)
        storms = self._storms[kind] = self._storms.pop(kind, [])  # the last of them now
        if storms and abs(event.at - storms[-1].event.at) <= self._silence:
            storms[-1] = _joined(storms[-1], stored)
            return
        storms.append(stored)
        del storms[:-STORMS_OF_A_KIND_MAX]
        if len(self._storms) > KINDS_MAX:
            del self._storms[next(iter(self._storms))]

    def events(self, since: float) -> list[StoredKernelEvent]:
        """Those received since, in the order in which they began."""
        found = [one for storms in self._storms.values() for one in storms if one.received_at >= since]
        return sorted(found, key=lambda one: (one.begun_at, one.event.sequence))


def read(stored: StoredKernelEvent) -> KernelLine:
    """The event's text, parsed. When the text does not name the GPU, or has an unknown form, the agent's fields count,
    or those of an earlier line.
    """
    event = stored.event
    line = decode(event.text)
    if line.form is Form.OTHER and event.xid is not None:
        return KernelLine(Form.XID, code=event.xid, bus_id=event.bus_id, message=line.message)
    return replace(line, bus_id=event.bus_id) if event.bus_id and not line.bus_id else line


def _joined(storm: StoredKernelEvent, more: StoredKernelEvent) -> StoredKernelEvent:
    latest = more if more.event.sequence >= storm.event.sequence else storm  # of one boot
    return replace(latest, since=min(storm.begun_at, more.begun_at), count=storm.count + more.count)
