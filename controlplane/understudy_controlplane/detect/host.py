"""The host under the GPUs: disks that are full, read-only or missing, a wrong clock; and a host that cannot be read,
because a file system or an adapter's firmware hangs; and what its agent reports that it cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Hardware
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import ClockDetail, Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import NOT_MOUNTED, Disk

SILENT_SECONDS = 30.0
"""An agent that has just been started takes a moment to read them for the first time."""

AGENT_PROBLEMS = "agent.problems"


def host(node: NodeView, policy: Hardware) -> Iterator[Finding]:
    for disk in node.host.disks if node.host is not None else ():
        words = _wrong(disk)
        if words:
            yield Finding(
                Signal.HEALTH_SUSPECTED,
                "host.disk",
                node.name,
                node.heard_at or 0.0,
                f"{disk.path} {words}",
                Evidence({"path": disk.path, "free_bytes": disk.free_bytes, "total_bytes": disk.total_bytes}),
            )
    for what, seconds in (("fabric ports", node.ports_silent_seconds), ("host", node.host_silent_seconds)):
        if seconds >= SILENT_SECONDS:
            yield Finding(
                Signal.HEALTH_SUSPECTED,
                "host.silent",
                node.name,
                (node.heard_at or 0.0) - seconds,
                f"its agent has tried to read the {what} for {seconds:.0f} s",
                Evidence(
                    {"part": what, "silent_seconds": seconds, "boot_id": node.boot_id, "repair": Repair.REBOOT.value}
                ),
                detail=HardwareDetail(repair=Repair.REBOOT, boot_id=node.boot_id),
            )
    # What concerns NVML is judged by the GPUs: a node without GPUs has no driver either.
    if problems := [text for text in node.problems if "NVML" not in text]:
        yield Finding(
            Signal.RECORDED,
            AGENT_PROBLEMS,
            node.name,
            node.heard_at or 0.0,
            f"its agent cannot read or keep everything: {problems[0]}",
            Evidence({"problems": [*problems]}),
        )
    if abs(node.clock_ahead_seconds) > policy.clock_offset_seconds:
        way = "ahead of" if node.clock_ahead_seconds > 0 else "behind"
        yield Finding(
            Signal.RECORDED,
            "host.clock",
            node.name,
            node.heard_at or 0.0,
            f"its clock is about {abs(node.clock_ahead_seconds):.0f} s {way} the control plane's",
            Evidence(
                {
                    "ahead_seconds": round(node.clock_ahead_seconds, 1),
                    "synchronised": node.host.clock_synchronised if node.host else None,
                }
            ),
            detail=ClockDetail(ahead_seconds=node.clock_ahead_seconds),
        )


def is_wrong(disk: Disk) -> bool:
    return bool(_wrong(disk))


def _wrong(disk: Disk) -> str:
    if disk.problem == "read-only":
        return "turned read-only"
    if disk.problem == NOT_MOUNTED:
        return "is not mounted any more, and there is a folder in its place"
    if disk.problem:
        return f"cannot be read any more: {disk.problem}"
    if disk.free_bytes < Hardware.disk_free_share_min * disk.total_bytes:
        return f"is full: {disk.free_bytes / 2**30:.1f} GiB free"
    if disk.free_inodes_share is not None and disk.free_inodes_share < Hardware.disk_free_share_min:
        return "has no inodes left"
    return ""
