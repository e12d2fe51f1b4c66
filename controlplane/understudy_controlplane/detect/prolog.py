"""Nodes that Slurm drained because Understudy's Prolog refused a job there. Slurm gives the same reason when a
site's own Prolog fails: only the record of a refusal by Understudy's Prolog shows the difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.custody import refusal_behind
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot


def drained_for_prolog(snapshot: Snapshot) -> Iterator[Finding]:
    under_way = {name for recovery in snapshot.recoveries for name in recovery.plan.nodes}
    for node in snapshot.set_apart:
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
