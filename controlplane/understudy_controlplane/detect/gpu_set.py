"""GPUs that are not there any more, that NVML cannot read, others in their place, and fewer than there should be.

The agent remembers which GPUs it has seen since the node booted. A GPU that is being reset goes away for seconds and
comes back the same; one that stays away has left the bus, whether or not the driver reported it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.detect.standstill import fault_or_at_job_end
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.gpu import nvml_error
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.plain_text import whole_words
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Gpu, GpuStatus

ERROR_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class UnreadableCause:
    rule: str
    what: str
    repair: Repair


UNREADABLE = UnreadableCause("nvml.unreadable", "NVML returns an error", Repair.REBOOT)
NONE_LISTED = UnreadableCause("nvml.no_gpu", "the driver is loaded and has no GPU", Repair.REBOOT)

CAUSES = {
    4: UnreadableCause(
        "nvml.no_permission", "the agent may not open the device files: its user, or a cgroup", Repair.NONE
    ),
    8: UnreadableCause("nvml.no_power", "a power cable of the GPU is not connected", Repair.MANUAL_REPAIR),
    9: UnreadableCause("nvml.not_loaded", "the driver is not loaded", Repair.REBOOT),
    12: UnreadableCause("nvml.no_library", "the driver's library is not installed", Repair.NONE),
    14: UnreadableCause("nvml.corrupted_inforom", "the GPU's InfoROM is corrupted", Repair.MANUAL_REPAIR),
    15: UnreadableCause("nvml.lost", "the GPU is lost", Repair.REBOOT),
    17: UnreadableCause("nvml.no_permission", "the operating system or a cgroup blocks the GPU", Repair.NONE),
    18: UnreadableCause(
        "nvml.driver_mismatch",
        "the driver's library and its kernel module are of different releases, as after an upgrade without a reboot",
        Repair.REBOOT,
    ),
    27: UnreadableCause(
        "nvml.not_ready", "the system is not ready: the Fabric Manager, or a driver that is starting", Repair.REBOOT
    ),
}
"""nvmlReturn → the cause, by NVML's reference (nvml.h of driver R580)."""


def gpu_in_set(snapshot: Snapshot, node: NodeView, gpu: Gpu, policy: Hardware) -> Iterator[Finding]:
    if gpu.status is GpuStatus.MISSING and gpu.missing_seconds >= policy.gpu_missing_seconds:
        what = f"is missing for {gpu.missing_seconds:.0f} s: NVML listed it earlier in this boot"
        signal = fault_or_at_job_end(snapshot, node.name, snapshot.now - gpu.missing_seconds)
        yield gpu_finding(node, gpu, signal, "gpus.missing", what, Repair.REBOOT)
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


def lacks_gpus(node: NodeView) -> bool:
    """NVML can read fewer GPUs at this moment than the node has: it must not become a gang's spare."""
    return node.gpus_readable is not None and node.gpus_readable.count < node.whole_gpus


def unreadable_gpus(now: float, node: NodeView, policy: Hardware) -> Iterator[Finding]:
    """GPUs for which NVML returns an error, and nodes whose NVML lists no GPU at all. One finding for a node: the cause
    is nearly always its driver. A driver that does not answer is judged by itself (`detect.driver`).
    """
    unreadable = [gpu for gpu in node.gpus if gpu.status is GpuStatus.UNREADABLE]
    if not lacks_gpus(node) or node.nvml_silent_seconds or (node.gpus and not unreadable):
        return
    assert node.gpus_readable is not None
    expected, count = node.whole_gpus, node.gpus_readable.count
    since = node.gpus_readable.fewer_since(len(node.gpus) or expected)
    if now - since < policy.gpu_unreadable_seconds:
        return
    texts = [gpu.error for gpu in unreadable if gpu.error] or [text for text in node.problems if "NVML" in text]
    codes = [code for text in texts if (code := nvml_error(text)) is not None]
    cause = CAUSES.get(codes[0], UNREADABLE) if codes else UNREADABLE if texts or unreadable else NONE_LISTED
    if node.gpus:
        read, which = f"{count} of {expected} GPUs", f"GPU {', '.join(str(gpu.index) for gpu in unreadable)}"
    else:
        read, which = "no GPU", f"Slurm has {expected} GPUs or instances of GPUs"
    text = f" ({whole_words(texts[0], ERROR_CHARACTERS_MAX)})" if texts else ""
    yield Finding(
        Signal.HEALTH_SUSPECTED,
        cause.rule,
        node.name,
        since,
        f"NVML can read {read} for {now - since:.0f} s ({which}): {cause.what}{text}",
        Evidence(
            {
                "readable": count,
                "expected": expected,
                "gpus": [gpu.index for gpu in unreadable],
                "nvml_error": codes[0] if codes else None,
                "errors": [*dict.fromkeys(texts)],
                "repair": cause.repair.value,
            }
        ),
        detail=HardwareDetail(repair=cause.repair, boot_id=node.boot_id),
    )


def too_few_gpus(now: float, node: NodeView) -> Iterator[Finding]:
    """Missing since before the node booted, so that its agent has never seen them."""
    expected = node.whole_gpus
    if expected > len(node.gpus) > 0 and not node.may_have_instances(now):
        yield Finding(
            Signal.HEALTH_SUSPECTED,
            "gpus.too_few",
            node.name,
            node.heard_at or 0.0,
            f"{len(node.gpus)} GPUs where there should be {expected}",
            Evidence({"gpus": len(node.gpus), "expected": expected, "repair": Repair.REBOOT.value}),
            detail=HardwareDetail(repair=Repair.REBOOT),
        )
