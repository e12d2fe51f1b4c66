"""GPUs that are not there any more, others in their place, and fewer than there should be.

The agent remembers which GPUs it has seen since the node booted. A GPU that is being reset goes away for seconds and
comes back the same; one that stays away has left the bus, whether or not the driver reported it.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_agent.wire import Gpu, GpuStatus
from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.slurm import gpus_of_gres
from understudy_controlplane.xid_policy import Repair


def gpu_in_set(node: NodeView, gpu: Gpu, policy: Hardware) -> Iterator[Finding]:
    if gpu.status is GpuStatus.MISSING and gpu.missing_seconds >= policy.gpu_missing_seconds:
        what = f"is missing for {gpu.missing_seconds:.0f} s: NVML listed it earlier in this boot"
        yield gpu_finding(node, gpu, Signal.HARDWARE_FAULT, "gpus.missing", what, Repair.REBOOT)
    if gpu.replaced_uuid:
        what = f"sits where {gpu.replaced_uuid} sat earlier in this boot"
        yield gpu_finding(
            node,
            gpu,
            Signal.HEALTH_SUSPECTED,
            "gpus.replaced",
            what,
            Repair.MANUAL_REPAIR,
            replaced_uuid=gpu.replaced_uuid,
        )


def too_few_gpus(node: NodeView, policy: Hardware) -> Iterator[Finding]:
    """Missing since before the node booted, so that its agent has never seen them."""
    expected = policy.gpus_per_node or (gpus_of_gres(node.slurm.gres) if node.slurm else 0)
    if expected > len(node.gpus) > 0:
        yield Finding(
            Signal.HEALTH_SUSPECTED,
            "gpus.too_few",
            node.name,
            node.heard_at or 0.0,
            f"{len(node.gpus)} GPUs where there should be {expected}",
            Evidence({"gpus": len(node.gpus), "expected": expected, "repair": Repair.REBOOT.value}),
            detail=HardwareDetail(repair=Repair.REBOOT),
        )
