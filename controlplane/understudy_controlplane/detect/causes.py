"""What else a node shows that can make a rank on it slow: the second signal, which names the reason.

Every cause is read from the newest samples alone. Those of `OF_THE_HARDWARE` are the node's own and may confirm that it
is at fault; the program, or another one, may cause a busy processor or slow storage, which only explain. So does a
slower PCIe generation: a GPU that idles between two bursts of work takes it to save power.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.node import NodeView
from understudy_wire.hardware import Gpu, Host, Port, PortRole


class Cause(StrEnum):
    CLOCKS = "clocks"
    POWER = "power"
    PCIE = "pcie"
    PCIE_GENERATION = "pcie_generation"
    NVLINK = "nvlink"
    INFINIBAND = "infiniband"
    CPU = "cpu"
    STORAGE = "storage"


OF_THE_HARDWARE = frozenset({Cause.CLOCKS, Cause.POWER, Cause.PCIE, Cause.NVLINK, Cause.INFINIBAND})

CLOCK_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
}
"""nvmlClocksEventReason bits that throttle a GPU for its own sake."""

POWER_BRAKE = 0x80
"""... and the one that throttles it because its supply asks for it. The power cap (0x4) is no fault: at full load every
GPU runs into it."""

PCIE_REPLAYS_RECENT_MIN = 100
NVLINK_ERRORS_RECENT_MIN = 100
SYMBOL_ERRORS_RECENT_MIN = 100
TRANSPORT_ERRORS_RECENT_MIN = 100
"""Errors in ten minutes. A link that is well has none; a handful comes with a retraining."""

BUSY_PERCENT_MIN = 50
"""A GPU that is less busy may have its link slowed down to save power."""

CPU_PRESSURE_PERCENT_MIN = 50.0
IO_PRESSURE_PERCENT_MIN = 20.0


def second_signals(node: NodeView, gpu: int | None) -> list[tuple[Cause, str]]:
    """Each cause with words for people, the likeliest first.

    `gpu` is the index of the rank's GPU on that node; None: it uses none.
    """
    own = next((one for one in node.gpus if one.index == gpu), None)
    return [
        *(_of_gpu(own) if own is not None else ()),
        *(signal for port in node.ports for signal in _of_port(port)),
        *(_of_host(node.host) if node.host is not None else ()),
    ]


def _of_gpu(gpu: Gpu) -> Iterator[tuple[Cause, str]]:
    reasons = gpu.clock_event_reasons or 0
    if reasons & POWER_BRAKE:
        yield Cause.POWER, "clocks throttled: power brake"
    named = [name for bit, name in CLOCK_REASONS.items() if reasons & bit]
    if named:
        yield Cause.CLOCKS, f"clocks throttled: {', '.join(named)}"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        yield Cause.PCIE, f"PCIe link down-trained to x{gpu.pcie_width} of x{gpu.pcie_width_max}"
    if (gpu.pcie_replays_recent or 0) >= PCIE_REPLAYS_RECENT_MIN:
        yield Cause.PCIE, f"PCIe link had to repeat itself {times(gpu.pcie_replays_recent or 0)} within ten minutes"
    slower = gpu.pcie_generation and gpu.pcie_generation_max and gpu.pcie_generation < gpu.pcie_generation_max
    if slower and (gpu.utilization_percent or 0) >= BUSY_PERCENT_MIN:
        words = f"PCIe link runs at generation {gpu.pcie_generation} of {gpu.pcie_generation_max} under load"
        yield Cause.PCIE_GENERATION, words
    if gpu.nvlinks is not None and gpu.nvlinks_max is not None and gpu.nvlinks < gpu.nvlinks_max:
        yield Cause.NVLINK, f"{gpu.nvlinks} NVLinks up of {gpu.nvlinks_max}"
    if (gpu.nvlink_errors_recent or 0) >= NVLINK_ERRORS_RECENT_MIN:
        yield Cause.NVLINK, f"{gpu.nvlink_errors_recent} NVLink errors within ten minutes"


def _of_port(port: Port) -> Iterator[tuple[Cause, str]]:
    if not port.was_active or port.role is not PortRole.TRAINING:
        return
    if port.down_seconds is not None:
        yield Cause.INFINIBAND, f"port {port.label} is {port.state or 'not there'}"
    elif port.rate_gbps and port.rate_gbps_max and port.rate_gbps < port.rate_gbps_max:
        yield Cause.INFINIBAND, f"port {port.label} runs at {port.rate_gbps:g} of {port.rate_gbps_max:g} Gb/s"
    elif port.link_downed_recent:
        yield Cause.INFINIBAND, f"port {port.label} went down {times(port.link_downed_recent)} within ten minutes"
    if (port.symbol_errors_recent or 0) >= SYMBOL_ERRORS_RECENT_MIN:
        yield Cause.INFINIBAND, f"port {port.label} had {port.symbol_errors_recent} symbol errors within ten minutes"
    if (port.transport_errors_recent or 0) >= TRANSPORT_ERRORS_RECENT_MIN:
        words = f"port {port.label} had {port.transport_errors_recent} time-outs and lost packets within ten minutes"
        yield Cause.INFINIBAND, words
    if port.pause_storms_recent:
        yield Cause.INFINIBAND, f"port {port.label} stopped its peers {times(port.pause_storms_recent)} in ten minutes"
    if port.module_received_low:
        light = f"{port.module_received_milliwatts:.3f} mW" if port.module_received_milliwatts is not None else "light"
        yield Cause.INFINIBAND, f"the module of port {port.label} receives {light}, which is below its own limit"


def _of_host(host: Host) -> Iterator[tuple[Cause, str]]:
    if (host.cpu_pressure_percent or 0.0) >= CPU_PRESSURE_PERCENT_MIN:
        yield Cause.CPU, f"tasks waited for a processor {host.cpu_pressure_percent:.0f} % of the last minute"
    if (host.io_pressure_percent or 0.0) >= IO_PRESSURE_PERCENT_MIN:
        yield Cause.STORAGE, f"all tasks waited for storage {host.io_pressure_percent:.0f} % of the last minute"
