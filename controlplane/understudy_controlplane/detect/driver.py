"""Drivers that do not answer: NVML has owed the agent's process an answer for long, or the kernel holds that process.

A hung driver is no proof against a node. It may be a reset under way, a driver being loaded, a machine without a moment
to spare; and what runs on the GPUs may go on for hours without the driver's management side. So the node is suspect. It
is at fault when a gang on it stands still as well, for as long: both together is what a driver hung in earnest looks
like, and a gang that stands still has nothing to lose by being moved. Many nodes at once are what an upgrade does to
them; those that fell silent long before, or are out of service, do not make them many.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.common_cause import bears_witness, domain_faults, nodes_alike
from understudy_controlplane.detect.standstill import stands_still
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import Repair


def silent_drivers(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    silent = [
        (node, (node.heard_at or snapshot.now) - node.nvml_silent_seconds)
        for node in snapshot.unusual
        if node.nvml_silent_seconds
    ]
    many: list[tuple[str, float]] = []
    alike_of = nodes_alike([(node, at, bears_witness(node)) for node, at in silent])
    for (node, at), alike in zip(silent, alike_of, strict=True):
        seconds = node.nvml_silent_seconds
        if seconds < policy.nvml_silent_seconds:
            continue
        together = alike >= policy.together_nodes
        job = None
        if seconds >= policy.nvml_silent_stalled_seconds and not together:
            job = stands_still(snapshot, node.name, policy.nvml_silent_stalled_seconds, seconds)
        words = f"NVML has not answered for {seconds:.0f} s"
        if node.nvml_unkillable:
            words += ", and the process that called it hangs in the kernel"
        if job is not None:
            words += f"; job {job.job_id} there makes no progress"
        if together:
            many.append((node.name, at))
            words += f"; {counted(alike, 'node shows', 'nodes show')} the same"
        yield Finding(
            signal=Signal.RECORDED if together else Signal.HARDWARE_FAULT if job else Signal.HEALTH_SUSPECTED,
            rule="driver.silent_and_stalled" if job else "driver.silent",
            node=node.name,
            at=at,
            summary=words,
            evidence=Evidence(
                {
                    "silent_seconds": seconds,
                    "unkillable": node.nvml_unkillable,
                    "nodes_alike": alike,
                    "boot_id": node.boot_id,
                    "repair": Repair.REBOOT.value,
                }
            ),
            detail=HardwareDetail(repair=Repair.REBOOT, boot_id=node.boot_id),
            job=job,
        )
    yield from domain_faults(snapshot, "driver.silent", many, "their drivers stopped answering together")
