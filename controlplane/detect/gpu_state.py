"""GPUs that NVML itself reports as gone, or for which the driver asks for a repair."""

from __future__ import annotations

from collections.abc import Iterator

from agents.wire import Gpu, GpuStatus
from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import NodeView
from controlplane.fleet.snapshot import Snapshot

RECOVERY_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset",
}
"""NVML field 230 (GPU recovery action). Peer-to-peer drain is recorded only: the GPU's own work goes on."""


def gpu_state(snapshot: Snapshot) -> Iterator[Finding]:
    for node in snapshot.nodes.values():
        for gpu in node.gpus:
            yield from _judge(node, gpu)


def _judge(node: NodeView, gpu: Gpu) -> Iterator[Finding]:
    at = node.heard_at or 0.0
    if gpu.status in (GpuStatus.LOST, GpuStatus.RESET_REQUIRED):
        what = "is lost to NVML" if gpu.status is GpuStatus.LOST else "must be reset"
        yield _finding(node, gpu, at, Signal.HARDWARE_FAULT, f"nvml.{gpu.status.value}", what)
    elif gpu.recovery_action in (1, 2, 4):
        what = f"asks for a repair: {RECOVERY_ACTIONS[gpu.recovery_action]}"
        yield _finding(node, gpu, at, Signal.HARDWARE_FAULT, "nvml.recovery_action", what)
    elif gpu.remapped_rows_failed:
        yield _finding(node, gpu, at, Signal.HARDWARE_FAULT, "nvml.row_remap_failed", "could not remap a memory row")


def _finding(node: NodeView, gpu: Gpu, at: float, signal: Signal, rule: str, what: str) -> Finding:
    return Finding(
        signal=signal,
        rule=rule,
        node=node.name,
        at=at,
        summary=f"GPU {gpu.index} ({gpu.bus_id or gpu.uuid or 'identity unknown'}) {what}",
        evidence={
            "gpu": gpu.index,
            "uuid": gpu.uuid,
            "serial": gpu.serial,
            "bus_id": gpu.bus_id,
            "status": gpu.status.value,
            "recovery_action": gpu.recovery_action,
        },
    )
