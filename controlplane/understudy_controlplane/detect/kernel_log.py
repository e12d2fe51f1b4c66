"""Lines of the kernel log without a code: of the driver, of PCIe, of network adapters, memory, disks and processes.

Each is judged by its row of the policy alone. Most make the node suspect for a day: they show that something is wrong,
and not what must be repaired. What must be repaired has a signal of its own: an Xid, a port that is down, a disk that
became read-only.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Xid
from understudy_controlplane.detect.node_log import kernel_row_name, read
from understudy_controlplane.detect.xid import SIGNALS
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.plain_text import whole_words
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.kernel_line import Form

SUMMARY_CHARACTERS_MAX = 160


def kernel_log(snapshot: Snapshot, policy: Xid) -> Iterator[Finding]:
    for node in snapshot.notable:
        if node.events:
            yield from _of_node(snapshot.now, node, policy)


def _of_node(now: float, node: NodeView, policy: Xid) -> Iterator[Finding]:
    for stored in node.events:
        if stored.event.xid is not None or read(stored).form is not Form.OTHER:
            continue
        name = kernel_row_name(stored.event.text)
        if not name:
            continue
        row, text = policy.rows.kernel[name], stored.event.text
        signal = SIGNALS[row.fault]
        if signal is Signal.HEALTH_SUSPECTED and now - stored.event.at > row.hours * 3600.0:
            continue
        part = row.device(text)
        yield Finding(
            signal,
            f"kernel.{name}",
            node.name,
            stored.begun_at,
            f"{row.meaning}: {whole_words(text, SUMMARY_CHARACTERS_MAX)}",
            Evidence(
                {
                    "kernel_log": text,
                    "boot_id": stored.event.boot_id,
                    "sequence": stored.event.sequence,
                    "bus_id": part,
                    "class": row.fault.value,
                    "repair": row.repair.value,
                    "count": stored.count,
                    "jobs": [f"{job.job_id} of {job.user}" for job in stored.jobs],
                }
            ),
            detail=HardwareDetail(repair=row.repair, part=part, boot_id=stored.event.boot_id, is_event=True),
        )
