"""What people and other tools did to nodes in Slurm: drains that are not ours, and drains of ours that they lifted."""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.detect.prolog import refusal_behind
from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import REASON_PREFIX, NodeState, NodeView
from controlplane.fleet.snapshot import Snapshot


def administration(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.slurm_read_at is None:
        return
    for node in snapshot.nodes.values():
        if refusal_behind(snapshot, node) is None:  # else the drain is ours, whatever Slurm calls it
            yield from _judge(node, snapshot.slurm_read_at)


def _judge(node: NodeView, read_at: float) -> Iterator[Finding]:
    slurm, record = node.slurm, node.record
    if slurm is None:
        return
    ours = record.owns(slurm)
    out_of_service = slurm.draining or (slurm.down and not slurm.lost)
    if out_of_service and not ours:
        if node.state not in (NodeState.FOREIGN_DRAIN, NodeState.QUARANTINED):
            yield Finding(
                Signal.DRAINED_BY_OTHERS,
                "administration.foreign_drain",
                node.name,
                read_at,
                f"drained by {slurm.reason_user or 'somebody else'}: {slurm.reason or 'no reason given'}",
                {"reason": slurm.reason, "user": slurm.reason_user, "time": slurm.reason_at},
            )
    elif (
        not slurm.draining and not slurm.down and (node.state is NodeState.FOREIGN_DRAIN or _was_drained(node, read_at))
    ):
        yield Finding(
            Signal.DRAIN_LIFTED,
            "administration.drain_lifted",
            node.name,
            read_at,
            "the node was resumed in Slurm",
            {"our_reason": record.drain_reason},
        )


def _was_drained(node: NodeView, read_at: float) -> bool:
    """Our drain was carried out, and this reading of Slurm is younger."""
    at = node.record.drained_at
    return node.state is NodeState.QUARANTINED and at is not None and read_at > at


def undrained(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that we decided to take out of service, and Slurm never did: the drain was refused. It is tried again."""
    under_way = {name for recovery in snapshot.recoveries for name in recovery.plan.failed_nodes}
    for node in snapshot.nodes.values():
        never = node.state is NodeState.QUARANTINED and node.record.drained_at is None
        slurm = node.slurm
        if slurm is None or slurm.draining or slurm.taken_down(REASON_PREFIX):
            continue
        if never and node.name not in under_way:
            yield Finding(
                Signal.UNDRAINED,
                "administration.undrained",
                node.name,
                snapshot.now,
                "quarantined, but Slurm has not drained it",
            )
