"""The kernel log's grammar: one record in, one event about a GPU out. Pure.

A record of /dev/kmsg is `priority,sequence,microseconds,flags[,more];text` (the kernel's
Documentation/ABI/testing/dev-kmsg), then lines that begin with a space and carry properties of the device. Of
these only what NVIDIA's driver says about an Xid matters here; its shapes, old and new, are

    NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194, Contained: CE User Channel (0x9). RST: No,
    D-RST: No NVRM: Xid (0000:03:00): 14, Channel 00000001
"""

from __future__ import annotations

import re

from agents.sample.pci import normal_bus_id
from agents.wire import TEXT_CHARACTERS_MAX, KernelEvent

_RECORD = re.compile(r"\d{1,6},(?P<sequence>\d{1,18}),(?P<microseconds>\d{1,16}),[^;]*;(?P<text>.*)", re.DOTALL)
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus_id>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
    r"(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?P<xid>\d{1,9})(?:,|\s|$)"
)


class RecordError(ValueError):
    """This line is not a record of the kernel log."""


def parse_record(line: str, boot_id: str, booted_at: float) -> KernelEvent | None:
    """The event that `line` tells of, or None when it is no word of the driver about an Xid.

    `booted_at` is when the clock of the record's microseconds stood at zero, as seconds since the Unix epoch.
    Raises RecordError.
    """
    if line == "" or line.startswith(" "):
        return None
    record = _RECORD.fullmatch(line)
    if record is None:
        raise RecordError(f"not a kernel log record: {line[:80]!r}")
    text = record["text"]
    if not text.startswith("NVRM:") or "Xid" not in text:
        return None
    xid = _XID.match(text)
    return KernelEvent(
        boot_id=boot_id,
        sequence=int(record["sequence"]),
        at=booted_at + int(record["microseconds"]) / 1e6,
        text=text[:TEXT_CHARACTERS_MAX],
        xid=int(xid["xid"]) if xid else None,
        bus_id=normal_bus_id(xid["bus_id"]) if xid else "",
    )
