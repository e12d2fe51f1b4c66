"""The kernel log's grammar: one record in, one event about a GPU out. Pure.

A record of /dev/kmsg is `priority,sequence,microseconds,flags[,more];text` (the kernel's
Documentation/ABI/testing/dev-kmsg), then lines that begin with a space and carry properties of the device. Of these
only what NVIDIA's driver says of its GPUs and switches matters here: an Xid or SXid, a GPU that has fallen off the bus,
which UUID and serial number is where, and lines that the driver adds to these.

The agent sends the text as it was logged; number and address beside it are for counting. The control plane parses the
text (docs/adr/0017), so that a new form needs no new agents.
"""

from __future__ import annotations

import re

from understudy_agent.sample.pci import normal_bus_id
from understudy_agent.wire import TEXT_CHARACTERS_MAX, KernelEvent

_RECORD = re.compile(r"\d{1,6},(?P<sequence>\d{1,18}),(?P<microseconds>\d{1,16}),[^;]*;(?P<text>.*)", re.DOTALL)
_DRIVER = re.compile(
    r"nvidia-nvswitch\d{1,6}: SXid "
    r"|NVRM: (?=.*(?:Xid|fallen off the bus|GPU at PCI:|[Ss]erial [Nn]umber|The NVIDIA GPU |PCI ID: "
    r"|installed in this system|GSP RPC |RPC (?:event )?history))"
    r"|NVRM:\s+(?:entry function\b|-?\d{1,4}\s+\d{1,6}\s+[A-Z])",
    re.DOTALL,
)
"""How the driver's lines about a GPU or switch begin."""

_SWITCH = re.compile(r"nvidia-nvswitch\d{1,6}: SXid \((?:PCI:)?(?P<bus_id>[0-9a-fA-F:.]{10,17})\)")
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus_id>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
    r"(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?P<xid>\d{1,9})(?:,|\s|$)"
)


class RecordError(ValueError):
    """This line is not a record of the kernel log."""


def parse_record(line: str, boot_id: str, booted_at: float) -> KernelEvent | None:
    """The event in `line`, or None when the line is not the driver's about a GPU or switch.

    `booted_at` is the time at which the clock of the record's microseconds was zero, in seconds since the Unix epoch.
    Raises RecordError.
    """
    if line == "" or line.startswith(" "):
        return None
    record = _RECORD.fullmatch(line)
    if record is None:
        raise RecordError(f"not a kernel log record: {line[:80]!r}")
    text = record["text"]
    if not _DRIVER.match(text):
        return None
    xid = _XID.match(text)
    about = xid or _SWITCH.match(text)
    return KernelEvent(
        boot_id=boot_id,
        sequence=int(record["sequence"]),
        at=booted_at + int(record["microseconds"]) / 1e6,
        text=text[:TEXT_CHARACTERS_MAX],
        xid=int(xid["xid"]) if xid else None,
        bus_id=normal_bus_id(about["bus_id"]) if about else "",
    )
