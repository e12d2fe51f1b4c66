"""One pass over the samples of all nodes, for faults that one node or GPU shows by itself."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.common_cause import shared_signs_joined
from understudy_controlplane.detect.fabric import (
    fabric_manager,
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
from understudy_controlplane.detect.usual import gpu_shows_something
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.facts import HardwareKind


def hardware(snapshot: Snapshot, policy: Hardware) -> list[Finding]:
    return shared_signs_joined(snapshot, list(_all(snapshot, policy)), policy)


def _all(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    outages = own_outages(snapshot, policy)
    yield from never_up(snapshot, policy)
    for node in snapshot.nodes.values() if policy.ports_per_node else ():
        yield from too_few_ports(node, policy)
    for node in snapshot.unusual:
        for gpu in filter(gpu_shows_something, node.gpus):
            yield from gpu_in_set(snapshot, node, gpu, policy)
            yield from gpu_memory(node, gpu)
            yield from held_back(node, gpu, policy)
            yield from gpu_fabric(node, gpu)
        yield from too_few_gpus(snapshot.now, node)
        readable = node.gpus_readable
        if readable is not None and (readable.count < len(node.gpus) or not readable.count):
            yield from unreadable_gpus(snapshot.now, node, policy)
        if node.host is not None:
            yield from host_memory(node)
        yield from host(node, policy)
        if node.processes:
            yield from stuck_processes(snapshot, node)
        if node.ports:
            yield from hot_modules(node)
        if node.host is not None:
            yield from fabric_manager(node)
        if node.name in outages:
            yield from unsteady_ports(node, outages[node.name], policy)
        if node.hardware_events:
            yield from _nvml_events(node)


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
