"""The ports of InfiniBand and RoCE adapters, as /sys/class/infiniband shows them, and how long they have been down.

An outage that is over is told as a fact, because the next picture no longer shows it. So is one that fell between two
looks, for which the adapter's own counter answers.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import Memory
from understudy_agent.sample.recent import Growth
from understudy_agent.wire import PORTS_PER_NODE_MAX, HardwareEvent, HardwareKind, Port

ACTIVE = "ACTIVE"

OUTAGE_TOLD_SECONDS = 10.0
"""An outage that was seen at one look only may have been shorter: it is one of those that `link_downed` counts."""

SHORT_OUTAGES_SECONDS = 600.0
"""Moments without a link come in swarms, and a swarm is told as one: what counts is that they come again."""

ATTRIBUTE_BYTES_MAX = 4096
"""What sysfs shows of one attribute is a page at most, and comes with one read(2)."""

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
        state=_word(_read(folder / "state")),
        physical_state=_word(_read(folder / "phys_state")),
        rate_gbps=float(rate[0]) if rate else None,
        link_downed=_count(folder / "counters" / "link_downed"),
        symbol_errors=_count(folder / "counters" / "symbol_error"),
    )


def _word(text: str) -> str:
    """ "4: ACTIVE" is ACTIVE."""
    return text.rpartition(":")[2].strip()


def _read(path: Path) -> str:
    """Empty for what this kernel or adapter does not show, or just now does not answer."""
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
    """What one look does not show. Pure but for `Memory`: times are given."""

    def __init__(self, memory: Memory, boot_id: str) -> None:
        self._memory = memory
        self._boot_id = boot_id
        self._symbol_errors = Growth()
        self._downed = Growth()
        self._downed_before: dict[str, int] = {}
        self._short_told_at: dict[str, float] = {}
        self.ports: list[Port] = []

    def add(self, ports: list[Port], monotonic: float, now: float) -> list[HardwareEvent]:
        """Takes one look's ports; returns outages that have ended. `monotonic` runs on through restarts of the agent,
        as CLOCK_MONOTONIC does; `now` is the time of day.
        """
        seen = self._memory.seen
        there = {port.label for port in ports}
        gone = [label.rpartition("/") for label in seen.port_rates if label not in there]
        all_ports = [*ports, *(Port(device, int(number)) for device, _, number in gone)]
        over = []
        self.ports = []
        for port in all_ports[:PORTS_PER_NODE_MAX]:
            label = port.label
            if port.state == ACTIVE:
                seen.port_rates[label] = max(port.rate_gbps or 0.0, seen.port_rates.get(label, 0.0))
                down_at = seen.port_down_at.pop(label, None)
                downed_between = self._downed_between(port)
                if down_at is not None and monotonic - down_at >= OUTAGE_TOLD_SECONDS:
                    over.append(self._outage(port, monotonic - down_at, now))
                elif downed_between and monotonic - self._short_told_at.get(label, -inf) >= SHORT_OUTAGES_SECONDS:
                    self._short_told_at[label] = monotonic
                    over.append(self._outage(port, 0.0, now))
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
        self._memory.save()
        return over

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
