"""The ports of InfiniBand and RoCE adapters, as /sys/class/infiniband shows them, and how long they have been down.

An outage that is over is sent as a fact, because the next sample no longer shows it. So is one between two samples,
which only the adapter's own counter shows.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.recent import Growth
from understudy_agent.wire import PORTS_PER_NODE_MAX, HardwareEvent, HardwareKind, Port

ACTIVE = "ACTIVE"

OUTAGE_SECONDS_MIN = 10.0
"""An outage that only one sample shows may have been shorter: it is one of those that `link_downed` counts."""

SHORT_OUTAGES_SECONDS = 600.0
"""Short outages come in groups, and a group is sent as one event: what counts is that they come back."""

ATTRIBUTE_BYTES_MAX = 4096
"""An attribute in sysfs has one page at most, and one read(2) returns it."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read_ports(sys: Path) -> list[Port]:
    """`sys` is /sys, or a folder of the same form."""
    ports = sorted((sys / "class" / "infiniband").glob("*/ports/*"))
    return [_read_port(port) for port in ports[:PORTS_PER_NODE_MAX]]


def _read_port(folder: Path) -> Port:
    rate = _NUMBER.match(_read(folder / "rate"))
    return Port(
        device=folder.parents[1].name,
        number=int(folder.name),
        link_layer=_read(folder / "link_layer"),
        state=_name(_read(folder / "state")),
        physical_state=_name(_read(folder / "phys_state")),
        rate_gbps=float(rate[0]) if rate else None,
        link_downed=_count(folder / "counters" / "link_downed"),
        symbol_errors=_count(folder / "counters" / "symbol_error"),
    )


def _name(text: str) -> str:
    """ "4: ACTIVE" is ACTIVE."""
    return text.rpartition(":")[2].strip()


def _read(path: Path) -> str:
    """Empty where this kernel or adapter has no such attribute, or the adapter does not answer at the moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, ATTRIBUTE_BYTES_MAX).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return ""


def _count(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdecimal() else None


class PortHistory:
    """What one sample does not show. Pure but for `HardwareHistory`: times are arguments."""

    def __init__(self, hardware: HardwareHistory, boot_id: str) -> None:
        self._hardware = hardware
        self._boot_id = boot_id
        self._symbol_errors = Growth()
        self._downed = Growth()
        self._downed_before: dict[str, int] = {}
        self._short_outage_at: dict[str, float] = {}
        self.ports: list[Port] = []

    def add(self, ports: list[Port], monotonic: float, now: float) -> list[HardwareEvent]:
        """Takes the ports of one sample; returns outages that have ended. `monotonic` continues across restarts of the
        agent, as CLOCK_MONOTONIC does; `now` is the time of day.
        """
        seen = self._hardware.seen
        present = {port.label for port in ports}
        gone = [label.rpartition("/") for label in seen.port_rates if label not in present]
        all_ports = [*ports, *(Port(device, int(number)) for device, _, number in gone)]
        ended = []
        self.ports = []
        for port in all_ports[:PORTS_PER_NODE_MAX]:
            label = port.label
            if port.state == ACTIVE:
                seen.port_rates[label] = max(port.rate_gbps or 0.0, seen.port_rates.get(label, 0.0))
                down_at = seen.port_down_at.pop(label, None)
                downed_between = self._downed_between(port)
                if down_at is not None and monotonic - down_at >= OUTAGE_SECONDS_MIN:
                    ended.append(self._outage(port, monotonic - down_at, now))
                elif downed_between and monotonic - self._short_outage_at.get(label, -inf) >= SHORT_OUTAGES_SECONDS:
                    self._short_outage_at[label] = monotonic
                    ended.append(self._outage(port, 0.0, now))
            elif label in seen.port_rates:
                seen.port_down_at.setdefault(label, monotonic)
            down_at = seen.port_down_at.get(label)
            self.ports.append(
                replace(
                    port,
                    was_active=label in seen.port_rates,
                    rate_gbps_max=seen.port_rates.get(label) or None,
                    down_seconds=None if down_at is None else round(monotonic - down_at, 1),
                    link_downed_recent=self._downed.add(label, monotonic, port.link_downed),
                    symbol_errors_recent=self._symbol_errors.add(label, monotonic, port.symbol_errors),
                )
            )
        self._hardware.save()
        return ended

    def _downed_between(self, port: Port) -> bool:
        """Whether the port, which is up now, has gone down since it was last seen up."""
        before = self._downed_before.get(port.label)
        if port.link_downed is None:
            return False
        self._downed_before[port.label] = port.link_downed
        return before is not None and port.link_downed > before

    def _outage(self, port: Port, seconds: float, now: float) -> HardwareEvent:
        return HardwareEvent(
            boot_id=self._boot_id,
            at=now - seconds,
            kind=HardwareKind.PORT_OUTAGE,
            part=port.label,
            number=port.link_downed,
            seconds=round(seconds, 1),
        )
