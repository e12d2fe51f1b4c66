"""Xid events: which of the driver's error numbers mean what.

The class of a code follows NVIDIA's Xid catalogue (immediate action, October 2025). Number first, text never:
texts changed between driver branches. A code that is not in the table is recorded and condemns nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import StoredKernelEvent
from controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class XidRow:
    signal: Signal
    meaning: str


_HARDWARE = Signal.HARDWARE_FAULT
_APPLICATION = Signal.APPLICATION_FAULT

XID_POLICY: dict[int, XidRow] = {
    13: XidRow(_APPLICATION, "graphics engine exception: an illegal instruction or address of the program"),
    31: XidRow(_APPLICATION, "memory page fault: an illegal address of the program"),
    43: XidRow(_APPLICATION, "the program's channel was reset after a fault of its own"),
    45: XidRow(Signal.RECORDED, "channels removed, as after a kill or another Xid"),
    48: XidRow(_HARDWARE, "uncorrectable (double-bit) memory error"),
    62: XidRow(_HARDWARE, "the GPU's power-management controller halted"),
    64: XidRow(_HARDWARE, "a memory row could not be retired"),
    74: XidRow(_HARDWARE, "NVLink error"),
    79: XidRow(_HARDWARE, "the GPU has fallen off the bus"),
    95: XidRow(_HARDWARE, "uncontained memory error: every program on the GPU is affected"),
    119: XidRow(_HARDWARE, "the GPU's system processor does not answer"),
    120: XidRow(_HARDWARE, "the GPU's system processor failed"),
    140: XidRow(_HARDWARE, "an uncorrectable memory error escaped the usual handling"),
}

UNLISTED = XidRow(Signal.RECORDED, "no rule for this code")


def xid(snapshot: Snapshot) -> Iterator[Finding]:
    for node in snapshot.nodes.values():
        for stored in node.events:
            if stored.event.xid is not None:
                yield _judge(stored, stored.event.xid)


def _judge(stored: StoredKernelEvent, code: int) -> Finding:
    row = XID_POLICY.get(code, UNLISTED)
    event = stored.event
    return Finding(
        signal=row.signal,
        rule=f"xid.{code}",
        node=stored.node,
        at=event.at,
        summary=f"Xid {code} on GPU {event.bus_id or 'unknown'}: {row.meaning}",
        evidence={
            "xid": code,
            "bus_id": event.bus_id,
            "boot_id": event.boot_id,
            "sequence": event.sequence,
            "kernel_log": event.text,
        },
    )
