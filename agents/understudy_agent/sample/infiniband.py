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
from understudy_agent.sample.port_roles import SWITCH_MANAGEMENT, hca_setting, roles
from understudy_agent.sample.recent import Growth
from understudy_wire.facts import HardwareEvent, HardwareKind
from understudy_wire.hardware import Port, PortRole
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
    of_nvswitch: Callable[[Path], bool] | None = None,
) -> list[Port]:
    """`sys` is /sys, or a folder of the same form; `pause_storms` and `optics` read them of a network interface,
    `of_nvswitch` remembers `is_of_nvswitch` of a device.
    """
    ports = sorted((sys / "class" / "infiniband").glob("*/ports/*"))
    readers = pause_storms, optics, of_nvswitch or is_of_nvswitch
    return [_read_port(port, *readers) for port in ports[:PORTS_PER_NODE_MAX]]


def is_of_nvswitch(device: Path) -> bool:
    """True by its VPD, which an adapter takes milliseconds to show, and which stays the same."""
    return SWITCH_MANAGEMENT in _read(device / "vpd")


def _read_port(
    folder: Path,
    pause_storms: Callable[[str], int | None],
    optics: Callable[[str], Light],
    of_nvswitch: Callable[[Path], bool],
) -> Port:
    rate = _NUMBER.match(_read(folder / "rate"))
    link_layer, device = _read(folder / "link_layer"), folder.parents[1] / "device"
    interface = next(iter(sorted((device / "net").glob("*"))), None) if link_layer == "Ethernet" else None
    downed = _count(folder / "counters" / "link_downed")
    celsius, celsius_max = _module_celsius(device)
    light = optics(interface.name) if interface else UNKNOWN
    return Port(
        device=printable(folder.parents[1].name, NAME_CHARACTERS_MAX),
        number=int(folder.name),
        role=_certain_role(device, interface, of_nvswitch),
        adapter=_name(_read(folder.parents[1] / "board_id") or _read(folder.parents[1] / "hca_type")),
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


def _certain_role(device: Path, interface: Path | None, of_nvswitch: Callable[[Path], bool]) -> PortRole:
    """TRAINING where the port itself shows no other role. Hyper-V lends a port to a synthetic interface, and takes it
    away and gives it back while the host is serviced (Linux: drivers/net/hyperv/netvsc_drv.c).
    """
    if of_nvswitch(device):
        return PortRole.NVSWITCH
    lent = interface is not None and (interface / "master" / "device" / "driver").resolve().name == "hv_netvsc"
    return PortRole.OTHER if lent else PortRole.TRAINING


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


def read_hca(nccl_conf: Path) -> str:
    """NCCL_IB_HCA that the site sets for all programs of this node; empty: not set."""
    return hca_setting(_read(nccl_conf))


def _identity(port: Port, known: Port | None) -> Port:
    """What stays known of a port in this boot, when it is down or gone."""
    is_active = port.state == ACTIVE
    rates = [port.rate_gbps if is_active else None, known.rate_gbps_max if known else None]
    return Port(
        port.device,
        port.number,
        port.link_layer,
        role=port.role,
        adapter=port.adapter,
        rate_gbps_max=max((rate for rate in rates if rate), default=None),
        was_active=is_active or (known is not None and known.was_active),
    )


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

    def add(self, ports: list[Port], monotonic: float, now: float, hca: str = "") -> list[HardwareEvent]:
        """Takes the ports of one sample; returns outages that have ended. `monotonic` continues across restarts of the
        agent, as CLOCK_MONOTONIC does; `now` is the time of day; `hca` is the site's NCCL_IB_HCA.
        """
        seen = self._hardware.seen
        used = {label for label, known in seen.ports.items() if known.was_active}
        for port in ports:
            seen.ports[port.label] = _identity(port, seen.ports.get(port.label))
        present = {port.label for port in ports}
        gone = [Port(known.device, known.number) for label, known in seen.ports.items() if label not in present]
        role_of = roles(list(seen.ports.values()), hca)
        ended = []
        self.ports = []
        for port in [*ports, *(one for one in gone if seen.ports[one.label].was_active)][:PORTS_PER_NODE_MAX]:
            label, known = port.label, seen.ports[port.label]
            if port.state == ACTIVE:
                down_at = seen.port_down_at.pop(label, None)
                downed_between = self._downed_between(port)
                if down_at is not None and label in used and monotonic - down_at >= OUTAGE_SECONDS_MIN:
                    ended.append(self._outage(port, monotonic - down_at, now))
                elif downed_between and monotonic - self._short_outage_at.get(label, -inf) >= SHORT_OUTAGES_SECONDS:
                    self._short_outage_at[label] = monotonic
                    ended.append(self._outage(port, 0.0, now))
            else:
                seen.port_down_at.setdefault(label, monotonic)
            down_at = seen.port_down_at.get(label)
            self.ports.append(
                replace(
                    port,
                    role=role_of[label],
                    was_active=known.was_active,
                    rate_gbps_max=known.rate_gbps_max,
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
