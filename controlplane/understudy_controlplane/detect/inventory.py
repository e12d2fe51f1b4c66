"""GPUs that were moved from node to node, and their faults in the node before."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.snapshot import Snapshot


def inventory(snapshot: Snapshot) -> Iterator[Finding]:
    """Recorded, and no more: a GPU may have been repaired. It helps an administrator to understand its next fault."""
    for moved in snapshot.history.moved_gpus:
        past = f", where it failed {times(moved.faults)}" if moved.faults else ""
        yield Finding(
            Signal.RECORDED,
            "inventory.faulty_gpu_moved" if moved.faults else "inventory.gpu_moved",
            moved.node,
            snapshot.now,
            f"GPU {moved.serial or moved.uuid} ({moved.bus_id}) came from {moved.from_node}{past}",
            Evidence({"uuid": moved.uuid, "serial": moved.serial, "bus_id": moved.bus_id, "faults": moved.faults}),
            detail=HardwareDetail(part=moved.bus_id, uuid=moved.uuid),
        )
