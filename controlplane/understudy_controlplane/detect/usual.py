"""Reports that show nothing but a node that works: nearly all of them. Each is looked at once, when it arrives.

Rules for hardware look at the others alone (`Snapshot.unusual`), at every tick, and twice before an action. Where this
takes too many for unusual, rules look at them for nothing; where it took too few, they would miss a fault.
"""

from __future__ import annotations

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.fabric import FABRIC_COMPLETED, fabric_wrong
from understudy_controlplane.detect.host import SILENT_SECONDS, is_wrong
from understudy_controlplane.fleet.gpu import reads_nvml
from understudy_wire.hardware import Gpu, GpuStatus, Host, Port, PortRole
from understudy_wire.messages import Report

GPU_WELL = GpuStatus.OK
FABRIC_AS_IT_SHOULD_BE = (None, 0, FABRIC_COMPLETED)


def is_usual(report: Report, ahead_seconds: float) -> bool:
    """True if no rule for the hardware of one node could find anything in it, whatever the site configures, but for
    the number of ports and GPUs that there should be. `ahead_seconds`: its clock, of the control plane's.
    """
    return (
        bool(report.gpus or not reads_nvml(report))
        and not report.nvml_silent_seconds
        and not report.processes
        and report.host_silent_seconds < SILENT_SECONDS
        and report.ports_silent_seconds < SILENT_SECONDS
        and abs(ahead_seconds) <= Hardware.clock_offset_seconds
        and all("NVML" in problem for problem in report.problems)
        and not any(map(gpu_shows_something, report.gpus))
        and not any(map(_port_shows_something, report.ports))
        and not (report.host is not None and _host_shows_something(report.host))
    )


def gpu_shows_something(gpu: Gpu) -> bool:
    """One look at a GPU takes less time than asking each rule, and a fleet has a hundred thousand GPUs."""
    return bool(
        gpu.status is not GPU_WELL
        or gpu.recovery_action
        or gpu.replaced_uuid
        or gpu.remapped_rows_pending
        or gpu.remapped_rows_failed
        or gpu.sram_threshold_exceeded
        or (gpu.slowed_share_recent and gpu.slowed_share_recent >= Hardware.slowed_share)
        or gpu.nvlinks != gpu.nvlinks_max
        or gpu.fabric_status
        or (gpu.fabric_health and fabric_wrong(gpu.fabric_health))
        or gpu.fabric_state not in FABRIC_AS_IT_SHOULD_BE
    )


def _port_shows_something(port: Port) -> bool:
    limit, celsius = port.module_celsius_max, port.module_celsius
    was_up = port.was_active or port.role is not PortRole.TRAINING
    return port.is_lost or not was_up or bool(limit and celsius and celsius >= limit)


def _host_shows_something(host: Host) -> bool:
    return host.fabric_manager is False or bool(host.memory_errors_uncorrected) or any(map(is_wrong, host.disks))
