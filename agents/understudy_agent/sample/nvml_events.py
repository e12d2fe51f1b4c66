"""NVML's events as facts. Pure.

The kernel log has the Xid too, with its text, and codes that NVML leaves out. So an Xid of NVML waits for its line in
the log. It becomes a fact when no line comes: the log may be unreadable, or have lost lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy_agent.sample.nvml_sample import NvmlEvent
from understudy_wire.facts import HardwareEvent, HardwareKind, KernelEvent

KERNEL_LOG_SECONDS = 5.0
"""An Xid of NVML waits for its line in the kernel log for this time."""

LINES_REMEMBERED_SECONDS = 60.0
REPEATED_AFTER_SECONDS = 60.0
"""The same event of the same GPU within this time is not sent again."""

XID = 0x8
KINDS = {
    XID: HardwareKind.NVML_XID,
    0x200: HardwareKind.NVML_MEMORY_STORM,
    0x400: HardwareKind.NVML_PAGE_RETIREMENT,
    0x800: HardwareKind.NVML_PAGE_RETIREMENT,
    0x1000: HardwareKind.NVML_POISON,
    0x2000: HardwareKind.NVML_POISON,
    0x4000: HardwareKind.NVML_UNAVAILABLE,
    0x8000: HardwareKind.NVML_RECOVERY_ACTION,
}
TEXTS = {
    0x400: "memory retired",
    0x800: "memory could not be retired",
    0x1000: "not fatal",
    0x2000: "fatal",
}


class NvmlEvents:
    """`now` is of the clock of the events' own times."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._waiting: list[NvmlEvent] = []
        self._lines: list[tuple[float, int, str]] = []
        self._sent_at: dict[tuple[int, str, int], float] = {}

    def add_kernel_events(self, events: Iterable[KernelEvent], now: float) -> None:
        self._lines = [line for line in self._lines if line[0] > now - LINES_REMEMBERED_SECONDS]
        self._lines += [(now, event.xid, event.bus_id) for event in events if event.xid is not None]

    def add(self, event: NvmlEvent) -> None:
        if event.kind in KINDS:  # others were not requested
            self._waiting.append(event)

    def due(self, now: float) -> list[HardwareEvent]:
        """The facts to send now."""
        return self._facts([one for one in self._waiting if one.kind != XID or now >= one.at + KERNEL_LOG_SECONDS])

    def last(self) -> list[HardwareEvent]:
        """The facts to send before the agent stops: no event waits any longer."""
        return self._facts(self._waiting)

    def _facts(self, due: list[NvmlEvent]) -> list[HardwareEvent]:
        self._waiting = [one for one in self._waiting if one not in due]
        return [self._fact(one) for one in due if not (one.kind == XID and self._in_log(one)) and self._is_new(one)]

    def _in_log(self, event: NvmlEvent) -> bool:
        return any(
            xid == event.data
            and (bus_id == event.bus_id or not bus_id or not event.bus_id)
            and at > event.at - LINES_REMEMBERED_SECONDS
            for at, xid, bus_id in self._lines
        )

    def _is_new(self, event: NvmlEvent) -> bool:
        key = (event.kind, event.bus_id, event.data)
        self._sent_at = {one: at for one, at in self._sent_at.items() if 0 <= event.at - at < REPEATED_AFTER_SECONDS}
        if key in self._sent_at:
            return False
        self._sent_at[key] = event.at
        return True

    def _fact(self, event: NvmlEvent) -> HardwareEvent:
        return HardwareEvent(
            boot_id=self._boot_id,
            at=event.at,
            kind=KINDS[event.kind],
            part=event.bus_id,
            number=event.data if event.data < 2**31 else None,
            text=TEXTS.get(event.kind, ""),
        )
