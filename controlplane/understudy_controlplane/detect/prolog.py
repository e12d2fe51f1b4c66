"""Nodes that Slurm drained because Understudy's Prolog refused a job there. Slurm gives the same reason when a
site's own Prolog fails: only the record of a refusal by Understudy's Prolog shows the difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Refusal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.slurm import PROLOG_ERROR
from understudy_controlplane.fleet.snapshot import Snapshot

DRAINED_WITHIN_SECONDS = 60.0
"""Slurm drains the node in the second in which the Prolog refused; the rest is for clocks that drift."""


def drained_for_prolog(snapshot: Snapshot) -> Iterator[Finding]:
    under_way = {name for recovery in snapshot.recoveries for name in recovery.plan.nodes}
    for node in snapshot.nodes.values():
        refusal = refusal_behind(snapshot, node)
        if refusal is not None and node.name not in under_way:
            yield Finding(
                Signal.DRAINED_FOR_PROLOG,
                "prolog.drained",
                node.name,
                refusal.at,
                f"the Prolog kept job {refusal.job_id} off it ({refusal.reason})",
                Evidence({"job": refusal.job_id, "at": refusal.at}),
            )


def refusal_behind(snapshot: Snapshot, node: NodeView) -> Refusal | None:
    """The refusal by Understudy's Prolog for which Slurm drained the node; None: it is not drained, or for another
    reason.
    """
    slurm = node.slurm
    if slurm is None or not slurm.draining or slurm.set_to_fail or slurm.reason != PROLOG_ERROR:
        return None
    near = (
        one
        for one in snapshot.refusals
        if one.node == node.name
        and any(abs(slurm.reason_at - at) <= DRAINED_WITHIN_SECONDS for at in snapshot.refused_at(one))
    )
    return next(near, None)
