"""Silence: an agent that stops reporting is unknown, not bad.

A node is dead only when Slurm agrees (nobody answers at its slurmd's port, or Slurm says so) *and* no job there goes
on. Many silent at once is our own fault or the network's: then nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.config import Silence
from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.snapshot import Snapshot

PROGRESS_MARGIN_SECONDS = 2.0
"""A job whose ranks finished steps this long after its node fell silent goes on there: the node lives."""


def silent_seconds(node: NodeView, snapshot: Snapshot) -> float:
    """How long nothing was heard of the node, by the control plane's clock."""
    return snapshot.now - max(node.heard_at or 0.0, snapshot.started_at)


def is_mass_silence(silent: int, watched: int, policy: Silence) -> bool:
    return silent >= policy.mass_nodes_min and silent >= policy.mass_share * watched


def silence(snapshot: Snapshot, policy: Silence) -> Iterator[Finding]:
    silent = [node for node in snapshot.nodes.values() if silent_seconds(node, snapshot) > policy.silent_after_seconds]
    mass = is_mass_silence(len(silent), len(snapshot.nodes), policy)
    for node in silent:
        yield _dead_or_silent(node, snapshot, policy, mass)
    quiet = {node.name for node in silent}
    for node in snapshot.nodes.values():
        if node.state is NodeState.UNKNOWN and node.name not in quiet:
            yield Finding(
                Signal.HEARD,
                "silence.heard",
                node.name,
                node.heard_at or snapshot.now,
                "the agent reports again",
            )


def _dead_or_silent(node: NodeView, snapshot: Snapshot, policy: Silence, mass: bool) -> Finding:
    seconds = silent_seconds(node, snapshot)
    since = snapshot.now - seconds
    evidence = {
        "silent_seconds": round(seconds, 3),
        "slurmd_silent_since": node.slurmd_silent_since,
        "slurm_state": node.slurm.base_state if node.slurm else None,
        "mass_silence": mass,
    }
    slurm_agrees = node.slurmd_silent_since is not None or (node.slurm is not None and node.slurm.down)
    if mass:
        because = "so do many others: taken for a fault of ours or of the network"
    elif seconds <= policy.dead_after_seconds:
        because = "not for long enough to mean anything"
    elif not slurm_agrees:
        because = "its slurmd answers"
    elif _job_goes_on(node, snapshot, since):
        because = "its job goes on"
    elif node.heard_at is None and snapshot.now - snapshot.started_at < 3 * policy.dead_after_seconds:
        because = "never heard since the control plane started"
    else:
        return Finding(
            Signal.NODE_DEAD,
            "silence.node_dead",
            node.name,
            since,
            f"dead: agent silent for {seconds:.1f} s and nobody answers at its slurmd's port",
            evidence,
            dead=True,
        )
    rule = "silence.mass" if mass else "silence.agent"
    return Finding(Signal.SILENT, rule, node.name, since, f"the agent is silent; {because}", evidence)


def _job_goes_on(node: NodeView, snapshot: Snapshot, since: float) -> bool:
    """A synchronous gang cannot finish steps without its ranks on this node."""
    return any(
        table.advanced_at > since + PROGRESS_MARGIN_SECONDS
        for table in snapshot.tables.values()
        if node.name in table.nodes
    )
