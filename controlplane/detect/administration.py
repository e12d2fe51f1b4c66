"""What people and other tools did to nodes in Slurm: drains that are not ours, and drains of ours that they lifted."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.snapshot import Snapshot

REASON_PREFIX = "understudy:"
"""Every drain reason of ours begins with this; a reason that does not is somebody else's."""


def administration(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.slurm_read_at is None:
        return
    for node in snapshot.nodes.values():
        yield from _judge(node, snapshot.slurm_read_at)


def _judge(node: NodeView, read_at: float) -> Iterator[Finding]:
    slurm = node.slurm
    if slurm is None:
        return
    ours = slurm.reason.startswith(REASON_PREFIX)
    record = node.record
    if slurm.draining and not ours:
        if node.state not in (NodeState.FOREIGN_DRAIN, NodeState.QUARANTINED):
            yield Finding(
                Signal.DRAINED_BY_OTHERS,
                "administration.foreign_drain",
                node.name,
                read_at,
                f"drained by {slurm.reason_user or 'somebody else'}: {slurm.reason or 'no reason given'}",
                {"reason": slurm.reason, "user": slurm.reason_user, "time": slurm.reason_at},
            )
    elif slurm.draining or slurm.down:
        return
    elif node.state is NodeState.FOREIGN_DRAIN or (
        node.state is NodeState.QUARANTINED and record.drained_at is not None and read_at > record.drained_at
    ):
        yield Finding(
            Signal.DRAIN_LIFTED,
            "administration.drain_lifted",
            node.name,
            read_at,
            "the node was resumed in Slurm",
            {"our_reason": record.drain_reason},
        )
