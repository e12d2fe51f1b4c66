"""The grammar of what NVIDIA's driver writes to the kernel log: one text in, its parts out. Pure, and never raises.

The only place where such lines are parsed. The agent needs code and address, to recognise the line of an Xid that NVML
reports too; the control plane needs all parts, and judges by the text that the agent sends as it was logged. So a new
form needs a new control plane and no new agents (docs/adr/0024). All forms and their sources: docs/xid-policy.md.
A text that fits no form is kept as `Form.OTHER`.

Codes, registers and flags come first. Of the driver's prose only what is the same in all branches of its source is
parsed, and only directly behind the driver's prefix. Any user can choose the name of a process: lines that the kernel
begins with one are not the driver's, and in an Xid's line prose is looked for behind the name, and the last match
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from understudy_wire.pci import normal_bus_id

_QUOTES_A_PROCESS = re.compile(
    r".{0,15}?(?:\[\d{1,10}\]| ?\(\d{1,10}\)|/\d{1,10}:? |: page allocation |: attempt to access | invoked oom-killer)",
    re.DOTALL,
)
"""The kernel begins these lines with the name of a process, which its user chose: at most 15 bytes, then its number
(`%s[%d]: segfault`, `%s (%d): drop_caches`, `%s/%d: potentially unexpected fatal signal`) or fixed words."""


def is_of_the_kernel(priority: int, flags: str, text: str) -> bool:
    """True if the kernel itself wrote a record of /dev/kmsg, and began its text.

    The kernel alone writes the facility 0 (`priority >> 3`): what a process writes to /dev/kmsg has another one. A
    record with the flag `c` (`+` before Linux 4.10) goes on with a line that the kernel began elsewhere: it may begin
    with the name of a file or of a cgroup. NVIDIA's driver alone gives all its lines this flag (os-interface.c).
    """
    return priority >> 3 == 0 and (flags not in ("c", "+") or text.startswith("NVRM: "))


def quotes_a_process(text: str) -> bool:
    """True if the kernel wrote this line about a process and began it with the process's name. Nothing in it counts."""
    return _QUOTES_A_PROCESS.match(_unescaped(text)) is not None


def is_about_a_device(text: str) -> bool:
    """True if the driver wrote this line about a GPU or switch: an Xid or SXid, a GPU that has fallen off the bus, a
    UUID or serial number, and lines that the driver adds to these.
    """
    if not text.startswith("N") and not text.startswith("n"):
        return False  # most lines of a kernel
    return _NAMES_A_DEVICE.match(text) is not None or decode(text).form is not Form.OTHER


class Form(StrEnum):
    XID = "xid"
    SXID = "sxid"  # of an NVSwitch
    LOST = "lost"  # a GPU has fallen off the bus, reported without a number
    GPU_NAMED = "gpu_named"  # names the GPU that the lines after it are about
    IDENTITY = "identity"  # which UUID is at which address
    SERIAL = "serial"
    SWITCH_DATA = "switch_data"  # follows an SXid's first line, which has its name
    GSP_HISTORY = "gsp_history"  # follows an Xid 119
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One parsed text. A field that the form does not have, or that the driver left out, is None or empty."""

    form: Form
    code: int | None = None  # of an Xid or SXid
    bus_id: str = ""  # "0000:1b:00.0": of the GPU, or of the switch
    instance: str = ""  # of a GPU that is shared (MIG): "GPU-I:05 GPU-CI:00"
    pid: int | None = None
    process: str = ""
    message: str = ""  # the driver's text, without number and process
    caused_by: int | None = None  # "caused by previous Xid"
    location: str = ""  # Xid 13: "GPC 0 TPC 1"
    unit: str = ""  # the part that failed
    link: int | None = None
    remote_bus_id: str = ""  # the other end of the link
    fatal: bool | None = None
    injected: bool | None = None  # made by a test
    cross_contain: bool | None = None
    words: tuple[int, ...] = ()  # registers
    address: str = ""
    reset: bool | None = None  # Xid 94, 95: RST
    drain_reset: bool | None = None  # Xid 94, 95: D-RST
    action_before: int | None = None  # Xid 154
    action: int | None = None
    function: str = ""  # Xid 119: what the system processor was asked
    counts: tuple[tuple[str, int], ...] = ()  # Xid 140
    severity: str = ""  # SXid: fatal, non-fatal, correctable
    switch: int | None = None
    uuid: str = ""
    serial: str = ""


_BUS = r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?" + _BUS + r"(?P<instance>(?: GPU-C?I:\d{1,9})*)\): "
    r"(?P<code>\d{1,9})(?:,\s*|\s+|$)(?P<rest>.*)",
    re.DOTALL,
)
_PROCESS = re.compile(r"pid=(?:'[^']*'|(?P<pid>\d{1,10})|[^,\s]*),\s*(?:name=(?P<name>[^,]*),\s*)?")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,9})\W*$")
_SXID = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{1,6}): SXid \((?:PCI:)?" + _BUS + r"\): (?P<code>\d{1,9})(?:,\s*|\s+|$)(?P<rest>.*)",
    re.DOTALL,
)
_SEVERITY = re.compile(r"(Fatal|Non-fatal|Correctable)\b,?\s*(?:Link (\d{1,6}))?")
_SEVERITY_NUMBER = re.compile(r"Severity ([01])\b")
_SEVERITIES = ("non-fatal", "fatal")  # NVSWITCH_ERROR_SEVERITY_NONFATAL, _FATAL
_IDENTITY = re.compile(r"NVRM: GPU at PCI:" + _BUS + r": (?P<uuid>GPU-[0-9a-fA-F-]{8,64})")
_BOARD_SERIAL = re.compile(r"NVRM: GPU Board Serial Number: (?P<serial>\S{1,64})")
_GPU = re.compile(
    r"NVRM: GPU (?:at (?:PCI:)?)?" + _BUS + r":? (?:GPU )?"
    r"(?:(?P<lost>has fallen off the bus)|serial number is (?P<serial>\S{1,64}))"
)
_NAMES_A_DEVICE = re.compile(r"(?:NVRM: Xid|nvidia-nvswitch\d{1,6}: SXid) \((?:PCI:)?" + _BUS)
_NAMED = re.compile(r"NVRM: The NVIDIA GPU " + _BUS + r"(?: \(PCI ID: [0-9a-fA-F:]+\))?\s*(?:\n|$)")
_PCI_ID = re.compile(r"NVRM: (?:\(PCI ID: [0-9a-fA-F:]+\) )?installed in this system has")
_LOST = re.compile(r"NVRM: fallen off the bus and is not responding")
_RECORD_OF_LINES = re.compile(r"\s*\n(?=NVRM: )")
_GSP_HISTORY = re.compile(
    r"NVRM:\s+(?:GPU\d+ (?:GSP RPC buffer contains|RPC (?:event )?history)|entry function\b"
    r"|-?\d{1,4}\s+\d{1,6}\s+[A-Z]\w*\s|Rate limiting GSP RPC error prints)"
)
_LOCATION = re.compile(r"\(GPC (\d{1,4}), TPC (\d{1,4})")
_FLAGS = re.compile(r"\bRST: (Yes|No), D-RST: (Yes|No)")
_CONTAINED = re.compile(r"\b(?:Unc|C)ontained: ([^(.]{1,80}?)\s*\(")
_PHYSICAL = re.compile(r"physAddr: (0x[0-9a-fA-F]{1,16})")
_ROW = re.compile(r"\((0x[0-9a-fA-F]{1,16})\)")
_ACTION = re.compile(r"from 0x([0-9a-fA-F]{1,8})\b.{0,80}?\bto 0x([0-9a-fA-F]{1,8})\b")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z]\w*)\s+(?P<severity>Fatal|Non-?[Ff]atal)\s+(?:XC(?P<contain>\d)\s+)?(?:i(?P<injected>\d)\s+)?"
    r"Link\s+(?P<link>-?\d{1,6})\s*\((?P<words>[^)]*)\)"
)
_NVLINK5_UNIT = re.compile(r"(?P<unit>[A-Z]\w*)\s+(?P<severity>Fatal|Non-?[Ff]atal)\b")
_LINK = re.compile(r"\blink (\d{1,6})")
_REMOTE = re.compile(r"to remote PCI:" + _BUS)
_FUNCTION = re.compile(r"Expected function (\d{1,9}) \((\w{1,64})\)")
_COUNT = re.compile(r"\b(DRAM|LTC|MMU|PCIE):\s*(\d{1,9})")
_WORD = re.compile(r"0x([0-9a-fA-F]{1,8})\b")
_WORDS = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:[\s,]+0x[0-9a-fA-F]{1,8})+)\)")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


def _unescaped(text: str) -> str:
    """/dev/kmsg writes each byte that is not printable as `\\x` and two digits, a backslash among them."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def decode(text: str) -> KernelLine:
    """Parses a text as /dev/kmsg writes it, or as dmesg shows it. A record of several lines is one text."""
    text = _unescaped(text).strip()
    if quotes_a_process(text):
        return KernelLine(Form.OTHER, message=text)
    found = _XID.match(text)
    if found is not None:
        return _xid(found)
    found = _SXID.match(text)
    if found is not None:
        return _sxid(found)
    return next(_without_number(text), KernelLine(Form.OTHER, message=text))


def _xid(found: re.Match[str]) -> KernelLine:
    message = (found["rest"] or "").strip()
    process = _PROCESS.match(message)
    line = KernelLine(
        Form.XID, code=int(found["code"]), bus_id=normal_bus_id(found["bus"]), instance=found["instance"].strip()
    )
    if process is not None:
        message = message[process.end() :]
        name = (process["name"] or "").strip()
        pid = int(process["pid"]) if process["pid"] else None
        line = replace(line, pid=pid, process="" if name == "<unknown>" else name)
    caused_by = _CAUSED_BY.search(message)
    line = replace(line, message=message, caused_by=int(caused_by[1]) if caused_by else None)
    return _more_of_xid(line)


def _more_of_xid(line: KernelLine) -> KernelLine:
    code = line.code or 0
    if code in (74, 136) or 144 <= code <= 150:
        return _nvlink(line)
    read = _MORE.get(code)
    return read(line) if read else line


def _location(line: KernelLine) -> KernelLine:
    at = _LOCATION.search(line.message)
    return replace(line, location=f"GPC {int(at[1])} TPC {int(at[2])}") if at else line


def _row(line: KernelLine) -> KernelLine:
    row = _ROW.search(line.message)
    return replace(line, address=row[1]) if row else line


def _asked(line: KernelLine) -> KernelLine:
    function = _FUNCTION.search(line.message)
    return replace(line, function=f"{function[1]} {function[2]}") if function else line


def _counts(line: KernelLine) -> KernelLine:
    return replace(line, counts=tuple((name, int(count)) for name, count in _COUNT.findall(line.message)))


def _recovery_action(line: KernelLine) -> KernelLine:
    actions = _ACTION.findall(line.message)
    return replace(line, action_before=int(actions[-1][0], 16), action=int(actions[-1][1], 16)) if actions else line


def _memory_error(line: KernelLine) -> KernelLine:
    flags, unit, address = _FLAGS.findall(line.message), _CONTAINED.search(line.message), _PHYSICAL.search(line.message)
    return replace(
        line,
        unit=unit[1].strip() if unit else "",
        address=address[1] if address else "",
        reset=flags[-1][0] == "Yes" if flags else None,
        drain_reset=flags[-1][1] == "Yes" if flags else None,
    )


_MORE: dict[int, Callable[[KernelLine], KernelLine]] = {
    13: _location,
    63: _row,
    64: _row,
    94: _memory_error,
    95: _memory_error,
    119: _asked,
    120: _asked,
    140: _counts,
    154: _recovery_action,
}


def _nvlink(line: KernelLine) -> KernelLine:
    message = line.message
    if line.code in (74, 136):
        link, remote, words = _LINK.search(message), _REMOTE.search(message), _WORDS.search(message)
        return replace(
            line,
            link=int(link[1]) if link else None,
            remote_bus_id=normal_bus_id(remote["bus"]) if remote else "",
            fatal=True if "fatal error" in message else None,
            words=_hexadecimal(words[1]) if words else (),
        )
    whole = _NVLINK5.match(message)
    if whole is None:
        part = _NVLINK5_UNIT.match(message)
        return replace(line, unit=part["unit"], fatal=part["severity"] == "Fatal") if part else line
    return replace(
        line,
        unit=whole["unit"],
        fatal=whole["severity"] == "Fatal",
        cross_contain=whole["contain"] != "0" if whole["contain"] else None,
        injected=whole["injected"] != "0" if whole["injected"] else None,
        link=int(whole["link"]) if int(whole["link"]) >= 0 else None,
        words=_hexadecimal(whole["words"]),
    )


def _sxid(found: re.Match[str]) -> KernelLine:
    message = found["rest"].strip()
    severity = _SEVERITY.match(message)
    follows = severity is None and message.startswith(("Severity ", "Data {"))
    number = _SEVERITY_NUMBER.match(message)
    return KernelLine(
        Form.SWITCH_DATA if follows else Form.SXID,
        code=int(found["code"]),
        bus_id=normal_bus_id(found["bus"]),
        message=message,
        switch=int(found["switch"]),
        severity=severity[1].lower() if severity else _SEVERITIES[int(number[1])] if number else "",
        link=int(severity[2]) if severity and severity[2] else None,
        words=_hexadecimal(message) if follows else (),
    )


def _without_number(text: str) -> Iterator[KernelLine]:
    """Readings of a line that has no code, best first."""
    identity = _IDENTITY.match(text)
    if identity is not None:
        yield KernelLine(Form.IDENTITY, bus_id=normal_bus_id(identity["bus"]), message=text, uuid=identity["uuid"])
    serial = _BOARD_SERIAL.match(text)
    if serial is not None:
        yield KernelLine(Form.SERIAL, message=text, serial=serial["serial"])
    gpu = _GPU.match(text)
    if gpu is not None:
        form = Form.LOST if gpu["lost"] else Form.SERIAL
        yield KernelLine(form, bus_id=normal_bus_id(gpu["bus"]), message=text, serial=gpu["serial"] or "")
    named = _NAMED.match(text)
    bus_id = normal_bus_id(named["bus"]) if named else ""
    # The driver writes name, PCI ID and fault as three lines of one record, which a log may show one by one.
    lines = _RECORD_OF_LINES.split(text, 2)
    if _LOST.match(lines[-1]) and (len(lines) == 1 or named is not None):
        yield KernelLine(Form.LOST, bus_id=bus_id, message=text)
    if named is not None or _PCI_ID.match(text):
        yield KernelLine(Form.GPU_NAMED, bus_id=bus_id, message=text)
    if _GSP_HISTORY.match(text):
        yield KernelLine(Form.GSP_HISTORY, message=text)


def _hexadecimal(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in _WORD.findall(text))
