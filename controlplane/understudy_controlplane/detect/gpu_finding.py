"""The common form of findings about one GPU."""

from __future__ import annotations

from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu


def gpu_finding(  # where, what it means, why, and which repair
    node: NodeView, gpu: Gpu, signal: Signal, rule: str, what: str, repair: Repair = Repair.NONE, **more: Json
) -> Finding:
    """`repair` is the first rung of the repair ladder that may help."""
    return Finding(
        signal=signal,
        rule=rule,
        node=node.name,
        at=node.heard_at or 0.0,
        summary=f"GPU {gpu.index} ({gpu.bus_id or gpu.uuid or 'identity unknown'}) {what}",
        evidence=Evidence(
            {
                "gpu": gpu.index,
                "uuid": gpu.uuid,
                "serial": gpu.serial,
                "bus_id": gpu.bus_id,
                "repair": repair.value,
                **more,
            }
        ),
        detail=HardwareDetail(repair=repair, part=gpu.bus_id, gpu=gpu.bus_id or str(gpu.index), uuid=gpu.uuid),
    )
