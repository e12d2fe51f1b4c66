"""GPUs that NVML itself reports as gone, or for which the driver asks for a repair."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import FaultClass, Repair, default_policy
from understudy_wire.hardware import Gpu, GpuStatus

SIGNALS = {FaultClass.HARDWARE: Signal.HARDWARE_FAULT, FaultClass.DRAIN: Signal.DRAIN_AT_JOB_END}


def gpu_state(snapshot: Snapshot) -> Iterator[Finding]:
    well = GpuStatus.OK  # looked up once, and not for each of a fleet's GPUs
    for node in snapshot.unusual:
        for gpu in node.gpus:
            if gpu.status is not well or gpu.recovery_action:
                yield from _judge(node, gpu)


def _judge(node: NodeView, gpu: Gpu) -> Iterator[Finding]:
    # NVML field 230; the same numbers as in Xid 154, and the same policy.
    action = default_policy().recovery_action.get(gpu.recovery_action or 0)
    if gpu.status is GpuStatus.LOST:
        yield gpu_finding(node, gpu, Signal.HARDWARE_FAULT, "nvml.lost", "is lost to NVML", Repair.REBOOT)
    elif gpu.status is GpuStatus.RESET_REQUIRED:
        yield gpu_finding(node, gpu, Signal.HARDWARE_FAULT, "nvml.reset_required", "must be reset", Repair.RESET_GPU)
    elif action is not None and action.fault in SIGNALS:
        what = f"asks for a repair: {action.meaning}"
        yield gpu_finding(node, gpu, SIGNALS[action.fault], "nvml.recovery_action", what, action.repair)
