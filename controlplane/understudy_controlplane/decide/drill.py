"""A drill: what would follow if the driver of a node logged an Xid now. Pure."""

from __future__ import annotations

from dataclasses import replace

from understudy_agent.wire import KernelEvent
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.xid import DRILL
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.job import JobThere
from understudy_controlplane.fleet.node import NodeView, StoredKernelEvent
from understudy_controlplane.fleet.snapshot import Snapshot

ANY_GPU = "0000:01:00.0"
"""Of a node whose GPUs are not known."""


def drill_event(node: NodeView, code: int, by: str, now: float) -> KernelEvent:
    """As the driver logs it for the node's first GPU, with a mark."""
    gpu = next((one.bus_id for one in node.gpus if one.bus_id), ANY_GPU)
    text = f"NVRM: Xid (PCI:{gpu.removesuffix('.0')}): {code}, {DRILL} of {by}"
    return KernelEvent(node.boot_id, int(now * 1000), now, text, code, gpu)


def what_follows(snapshot: Snapshot, config: Config, name: str, event: KernelEvent) -> list[Decision]:
    """The decisions of the next round in mode act, without those that would be made anyway."""
    acting = replace(snapshot, mode=Mode.ACT) if snapshot.mode is Mode.OBSERVE else snapshot
    made_anyway = {one.key for one in decide(acting, detect(acting, config), config)}
    node = acting.nodes[name]
    received_at = max(node.record.cleared_at + 1.0, event.at - config.xid.spread_wait_seconds)
    jobs = tuple(
        JobThere(key.job_id, key.submit_at, job.slurm.user)
        for key, job in acting.jobs.items()
        if job.running and name in job.slurm.nodes
    )
    stored = StoredKernelEvent(event.sequence, name, received_at, event, jobs)
    shown = replace(node, events=(*node.events, stored), history=(*node.history, stored))
    drilled = replace(acting, nodes={**acting.nodes, name: shown})
    return [one for one in decide(drilled, detect(drilled, config), config) if one.key not in made_anyway]
