"""Memory that wears out: a GPU's rows and caches by the driver's own flags, a host's by its controllers' counters.

Corrected errors mean nothing by their number. What counts is what the driver concludes from them: a remap that waits
for a reset, one that failed, a threshold that is passed.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu


def gpu_memory(node: NodeView, gpu: Gpu) -> Iterator[Finding]:
    if gpu.remapped_rows_failed:
        what = "could not remap a memory row: it has no spare ones left there"
        yield gpu_finding(node, gpu, Signal.HARDWARE_FAULT, "memory.row_remap_failed", what, Repair.MANUAL_REPAIR)
    elif gpu.remapped_rows_pending:
        what = "has a memory row to remap, which its next reset does"
        yield gpu_finding(node, gpu, Signal.DRAIN_AT_JOB_END, "memory.row_remap_pending", what, Repair.RESET_GPU)
    if gpu.sram_threshold_exceeded:
        what = "had more uncorrectable errors in its SRAM than the driver accepts"
        yield gpu_finding(node, gpu, Signal.HARDWARE_FAULT, "memory.sram_threshold", what, Repair.MANUAL_REPAIR)


def host_memory(node: NodeView) -> Iterator[Finding]:
    if node.host is not None and node.host.memory_errors_uncorrected:
        count = node.host.memory_errors_uncorrected
        yield Finding(
            Signal.HEALTH_SUSPECTED,
            "memory.host_uncorrected",
            node.name,
            node.heard_at or 0.0,
            f"{count} uncorrectable errors in the host's memory since boot",
            Evidence({"errors": count, "boot_id": node.boot_id, "repair": Repair.MANUAL_REPAIR.value}),
            detail=HardwareDetail(repair=Repair.MANUAL_REPAIR, boot_id=node.boot_id),
        )
