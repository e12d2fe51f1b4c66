"""The ports of InfiniBand, RoCE and EFA adapters, as /sys/class/infiniband shows them, and how long they were down.

An outage that is over is sent as a fact, because the next sample no longer shows it. So is one between two samples,
which only the adapter's own counter shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from math import inf
from pathlib import Path

from msgspec.structs import replace

from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.optics import UNKNOWN, Light
from understudy_agent.sample.recent import Growth
from understudy_wire.facts import HardwareEvent, HardwareKind
from understudy_wire.hardware import Port
from understudy_wire.messages import PORTS_PER_NODE_MAX
from understudy_wire.values import LABEL_CHARACTERS_MAX, NAME_CHARACTERS_MAX, READING_MAX, printable

ACTIVE = "ACTIVE"

OUTAGE_SECONDS_MIN = 10.0
"""An outage that only one sample shows may have been shorter: it is one of those that `link_downed` counts."""

SHORT_OUTAGES_SECONDS = 600.0
"""Short outages come in groups, and a group is sent as one event: what counts is that they come back."""

ATTRIBUTE_BYTES_MAX = 4096
"""An attribute in sysfs has one page at most, and one read(2) returns it."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


TRANSPORT_ERRORS = (
    "local_ack_timeout_err",  # mlx5, RoCE and InfiniBand
    "packet_seq_err",
    "implied_nak_seq_err",
    "req_transport_retries_exceeded",
    "rx_icrc_encapsulated",
    "retrans_timeout_events",  # EFA
    "unresponsive_remote_events",
)
"""Files of hw_counters. Congestion (CNP, ECN), packets out of order and single retransmissions are no errors. Names of
mlx5: drivers/infiniband/hw/mlx5/counters.c; of EFA: drivers/infiniband/hw/efa/efa_verbs.c (Linux 6.12).
"""


def read_ports(
    sys: Path,
    pause_storms: Callable[[str], int | None] = lambda _: None,
    optics: Callable[[str], Light] = lambda _: UNKNOWN,
) -> list[Port]:
    """`sys` is /sys, or a folder of the same form; `pause_storms` and `optics` read them of a network interface."""
    ports = sorted((sys / "class" / "infiniband").glob("*/ports/*"))
    return [_read_port(port, pause_storms, optics) for port in ports[:PORTS_PER_NODE_MAX]]


def _read_port(folder: Path, pause_storms: Callable[[str], int | None], optics: Callable[[str], Light]) -> Port:
    rate = _NUMBER.match(_read(folder / "rate"))
    link_layer, device = _read(folder / "link_layer"), folder.parents[1] / "device"
    interface = next(iter(sorted((device / "net").glob("*"))), None) if link_layer == "Ethernet" else None
    downed = _count(folder / "counters" / "link_downed")
    celsius, celsius_max = _module_celsius(device)
    light = optics(interface.name) if interface else UNKNOWN
    return Port(
        device=printable(folder.parents[1].name, NAME_CHARACTERS_MAX),
        number=int(folder.name),
        link_layer=_name(link_layer),
        state=_name(_read(folder / "state")),
        physical_state=_name(_read(folder / "phys_state")),
        rate_gbps=float(rate[0]) if rate else None,
        link_downed=_count(interface / "carrier_down_count") if downed is None and interface else downed,
        symbol_errors=_count(folder / "counters" / "symbol_error"),
        transport_errors=_transport_errors(folder / "hw_counters"),
        pause_storms=pause_storms(interface.name) if interface else None,
        module_celsius=celsius,
        module_celsius_max=celsius_max,
        module_received_milliwatts=light.milliwatts,
        module_received_low=light.low,
    )


def _transport_errors(counters: Path) -> int | None:
    known = [count for name in TRANSPORT_ERRORS if (count := _count(counters / name)) is not None]
    return sum(known) if known else None


def _module_celsius(device: Path) -> tuple[float | None, float | None]:
    """Temperature and limit of the hottest module of the adapter. Its own processor is no module."""
    found = [
        (milli / 1000, None if limit is None else limit / 1000)
        for label in sorted(device.glob("hwmon/hwmon*/temp*_label"))
        if _read(label) != "asic"
        and (milli := _count(label.with_name(label.name.replace("_label", "_input")))) is not None
        for limit in (_count(label.with_name(label.name.replace("_label", "_crit"))),)
    ]
    return max(found, key=lambda one: one[0], default=(None, None))


def _name(text: str) -> str:
    """ "4: ACTIVE" is ACTIVE."""
    return printable(text.rpartition(":")[2].strip(), LABEL_CHARACTERS_MAX)


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
    """None: no number, or one that no counter reaches, as 2**64 - 1 where the adapter does not support it."""
    text = _read(path)
    return int(text) if text.isdecimal() and int(text) <= READING_MAX else None


class PortHistory:
    """What one sample does not show. Pure but for `HardwareHistory`: times are arguments."""

    def __init__(self, hardware: HardwareHistory, boot_id: str) -> None:
        self._hardware = hardware
        self._boot_id = boot_id
        self._symbol_errors = Growth()
        self._downed = Growth()
        self._transport_errors = Growth()
        self._pause_storms = Growth()
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
                    transport_errors_recent=self._transport_errors.add(label, monotonic, port.transport_errors),
                    pause_storms_recent=self._pause_storms.add(label, monotonic, port.pause_storms),
                )
            )
        self._hardware.save()
        return ended

    def _downed_between(self, port: Port) -> bool:
        """True if the port, which is up now, has gone down since it was last seen up."""
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
