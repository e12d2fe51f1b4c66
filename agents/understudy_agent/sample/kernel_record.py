"""One record of the kernel log in, one event out: about a GPU or switch, or one that the control plane asks for. Pure.

A record of /dev/kmsg is `priority,sequence,microseconds,flags[,more];text` (the kernel's
Documentation/ABI/testing/dev-kmsg), then lines that begin with a space and carry properties of the device.
`kernel_line` parses the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from understudy_wire.facts import KernelEvent, KernelPattern
from understudy_wire.kernel_line import Form, decode, is_about_a_device, is_of_the_kernel, quotes_a_process
from understudy_wire.values import TEXT_CHARACTERS_MAX

_RECORD = re.compile(
    r"(?P<priority>\d{1,6}),(?P<sequence>\d{1,18}),(?P<microseconds>\d{1,16}),(?P<flags>[^,;]*)[^;]*;(?P<text>.*)",
    re.DOTALL,
)


class RecordError(ValueError):
    """This line is not a record of the kernel log."""


def asked_for(text: str, patterns: Sequence[KernelPattern]) -> KernelPattern | None:
    """The first pattern that fits the text."""
    found = next((pattern for pattern in patterns if pattern.match(text) is not None), None)
    return None if found is None or quotes_a_process(text) else found


def parse_record(
    line: str, boot_id: str, booted_at: float, patterns: Sequence[KernelPattern] = ()
) -> KernelEvent | None:
    """The event in `line`, or None when the line is neither the driver's about a GPU or switch, nor asked for by one of
    `patterns`.

    What a process wrote, or the kernel only in part, is none. `booted_at` is the time at which the clock of the
    record's microseconds was zero, in seconds since the Unix epoch. Raises RecordError.
    """
    if line == "" or line.startswith(" "):
        return None
    record = _RECORD.fullmatch(line)
    if record is None:
        raise RecordError(f"not a kernel log record: {line[:80]!r}")
    if not is_of_the_kernel(int(record["priority"]), record["flags"], record["text"]):
        return None
    if not is_about_a_device(record["text"]) and asked_for(record["text"], patterns) is None:
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
