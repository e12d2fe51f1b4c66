"""One pass over the samples of all nodes, for faults that one node or GPU shows by itself."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.common_cause import shared_signs_joined
from understudy_controlplane.detect.fabric import (
    FABRIC_COMPLETED,
    fabric_manager,
    fabric_wrong,
    gpu_fabric,
    hot_modules,
    never_up,
    own_outages,
    too_few_ports,
    unsteady_ports,
)
from understudy_controlplane.detect.gpu_set import gpu_in_set, too_few_gpus, unreadable_gpus
from understudy_controlplane.detect.host import host
from understudy_controlplane.detect.memory_wear import gpu_memory, host_memory
from understudy_controlplane.detect.processes import stuck_processes
from understudy_controlplane.detect.thermal import held_back
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.facts import HardwareKind
from understudy_wire.hardware import Gpu, GpuStatus

GPU_MISSING = GpuStatus.MISSING
FABRIC_AS_IT_SHOULD_BE = (None, 0, FABRIC_COMPLETED)


def hardware(snapshot: Snapshot, policy: Hardware) -> list[Finding]:
    return shared_signs_joined(snapshot, list(_all(snapshot, policy)), policy)


def _all(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    outages = own_outages(snapshot, policy)
    yield from never_up(snapshot, policy)
    for node in snapshot.nodes.values():
        for gpu in node.gpus:
            if _well(gpu, policy):
                continue
            yield from gpu_in_set(snapshot, node, gpu, policy)
            yield from gpu_memory(node, gpu)
            yield from held_back(node, gpu, policy)
            yield from gpu_fabric(node, gpu)
        yield from too_few_gpus(snapshot.now, node)
        readable = node.gpus_readable
        if readable is not None and (readable.count < len(node.gpus) or not readable.count):
            yield from unreadable_gpus(snapshot.now, node, policy)
        yield from host_memory(node)
        yield from host(node, policy)
        yield from stuck_processes(snapshot, node)
        yield from too_few_ports(node, policy)
        yield from hot_modules(node)
        yield from fabric_manager(node)
        if node.name in outages:
            yield from unsteady_ports(node, outages[node.name], policy)
        if node.hardware_events:
            yield from _nvml_events(node)


def _well(gpu: Gpu, policy: Hardware) -> bool:
    """Nothing that the rules below could find. Of a fleet's hundred thousand GPUs nearly all are, and asking each rule
    of each of them takes several times as long.
    """
    return (
        gpu.status is not GPU_MISSING
        and not gpu.replaced_uuid
        and not gpu.remapped_rows_pending
        and not gpu.remapped_rows_failed
        and not gpu.sram_threshold_exceeded
        and (gpu.slowed_share_recent is None or gpu.slowed_share_recent < policy.slowed_share)
        and gpu.nvlinks == gpu.nvlinks_max
        and not gpu.fabric_status
        and (not gpu.fabric_health or not fabric_wrong(gpu.fabric_health))
        and gpu.fabric_state in FABRIC_AS_IT_SHOULD_BE
    )


def _nvml_events(node: NodeView) -> Iterator[Finding]:
    """NVML's events of this boot. A fault of a GPU is in its sample too, or in the kernel log."""
    for stored in node.hardware_events:
        event = stored.event
        if event.kind is HardwareKind.PORT_OUTAGE or event.boot_id != node.boot_id:
            continue
        number = "" if event.number is None else f" {event.number}"
        yield Finding(
            Signal.RECORDED,
            f"event.{event.kind.value}",
            node.name,
            event.at,
            f"{event.kind.value.replace('_', ' ')}{number} on GPU {event.part or 'unknown'} {event.text}".rstrip(),
            Evidence(
                {
                    "bus_id": event.part,
                    "boot_id": event.boot_id,
                    "number": event.number,
                    "sequence": stored.id,
                }
            ),
            detail=HardwareDetail(part=event.part, boot_id=event.boot_id, is_event=True),
        )
