"""One record of the kernel log in, one event about a GPU or switch out. Pure.

A record of /dev/kmsg is `priority,sequence,microseconds,flags[,more];text` (the kernel's
Documentation/ABI/testing/dev-kmsg), then lines that begin with a space and carry properties of the device.
`kernel_line` parses the text.
"""

from __future__ import annotations

import re

from understudy_agent.kernel_line import Form, decode, is_about_a_device
from understudy_agent.wire import TEXT_CHARACTERS_MAX, KernelEvent

_RECORD = re.compile(r"\d{1,6},(?P<sequence>\d{1,18}),(?P<microseconds>\d{1,16}),[^;]*;(?P<text>.*)", re.DOTALL)


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
    if not is_about_a_device(record["text"]):
        return None
    text = record["text"][:TEXT_CHARACTERS_MAX]
    parsed = decode(text)
    return KernelEvent(
        boot_id=boot_id,
        sequence=int(record["sequence"]),
        at=booted_at + int(record["microseconds"]) / 1e6,
        text=text,
        xid=parsed.code if parsed.form is Form.XID else None,
        bus_id=parsed.bus_id,
    )
