"""The events of a node's kernel log that are kept: of a storm of equal lines, one event with their number.

Bursts are made of storms (`detect.bursts`). The same silence ends both, so joining lines to storms changes no burst.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import msgspec

from understudy_controlplane.fleet.drill import is_drill
from understudy_controlplane.fleet.node import StoredKernelEvent
from understudy_controlplane.xid_policy import default_policy
from understudy_wire.facts import KernelEvent
from understudy_wire.kernel_line import Form, KernelLine, decode

STORMS_OF_A_KIND_MAX = 30
KINDS_MAX = 500
"""Kinds kept of one node. Damaged lines, each different, must not fill the memory: the kind that was not seen for
longest is forgotten first.
"""

LINES_ABOUT_ONE_GPU = 4
"""The driver names the GPU at most this many lines before the line about its fault."""

_ABOUT_THE_LINE_BEFORE = frozenset({Form.LOST, Form.SERIAL})

_NVLINK5_CODES = range(144, 151)

_decode = lru_cache(maxsize=4096)(decode)
"""Every round reads the same events again."""


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
        kind = (event.boot_id, _kind(read(stored)), stored.jobs, is_drill(event.text))
        storms = self._storms[kind] = self._storms.pop(kind, [])  # the last of them now
        if storms and abs(event.at - storms[-1].event.at) <= self._silence:
            storms[-1] = _joined(storms[-1], stored)
            return
        storms.append(stored)
        del storms[:-STORMS_OF_A_KIND_MAX]
        if len(self._storms) > KINDS_MAX:
            del self._storms[next(iter(self._storms))]

    def events(self, since: float) -> list[StoredKernelEvent]:
        """Those received since, in the order in which they began. Kinds of which all are older are forgotten."""
        for kind in [kind for kind, storms in self._storms.items() if storms[-1].received_at < since]:
            del self._storms[kind]
        found = [one for storms in self._storms.values() for one in storms if one.received_at >= since]
        return sorted(found, key=lambda one: (one.begun_at, one.event.sequence))


def read(stored: StoredKernelEvent) -> KernelLine:
    """The event's text, parsed. Where the text has an unknown form, or does not name the GPU, code and address of the
    event count: the agent may be newer and know the form, or an earlier line named the GPU.
    """
    event = stored.event
    line = _decode(event.text)
    if line.form is Form.OTHER and event.xid is not None:
        return KernelLine(Form.XID, code=event.xid, bus_id=event.bus_id, message=line.message)
    return replace(line, bus_id=event.bus_id) if event.bus_id and not line.bus_id else line


def with_code(event: KernelEvent) -> KernelEvent:
    """The event with code and address as this release parses its text: the agent may be older and not know the form."""
    line = _decode(event.text)
    if line.form is not Form.XID:
        return event
    return msgspec.structs.replace(event, xid=line.code, bus_id=line.bus_id)


def _kind(line: KernelLine) -> tuple[object, ...]:
    """Lines of one kind report the same about the same device: one of many is enough."""
    status = line.words[:2] if line.code in _NVLINK5_CODES else line.words
    return (
        line.form,
        line.code,
        line.bus_id,
        line.instance,
        line.caused_by,
        line.location,
        line.unit,
        line.link,
        status,
        (line.reset, line.drain_reset),
        line.action,
        line.severity,
        line.uuid,
        line.serial,
        kernel_row_name(line.message) if line.form is Form.OTHER else "",
    )


@lru_cache(4096)
def kernel_row_name(text: str) -> str:
    """A line without a code is of the kind that the policy has for it."""
    return default_policy().kernel_row(text)


def _joined(storm: StoredKernelEvent, more: StoredKernelEvent) -> StoredKernelEvent:
    latest = more if more.event.sequence >= storm.event.sequence else storm  # of one boot
    return replace(latest, since=min(storm.begun_at, more.begun_at), count=storm.count + more.count)
