"""Gangs of ours that still run on a node which we took out of service.

So it is when there was no spare at that moment, when a job slipped onto the node before the drain, or when its
recovery failed half-way: whatever the reason, the gang is to be moved as soon as it can be.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.fleet.finding import Finding, Signal
from controlplane.fleet.node import NodeState
from controlplane.fleet.snapshot import Snapshot


def stranded(snapshot: Snapshot) -> Iterator[Finding]:
    for node in snapshot.nodes.values():
        if node.state is not NodeState.QUARANTINED:
            continue
        for job in snapshot.job_on(node.name):
            if job.managed and snapshot.recovery_of(job.key) is None:
                yield Finding(
                    Signal.GANG_STRANDED,
                    "stranded.gang",
                    node.name,
                    snapshot.now,
                    f"job {job.key.job_id} still runs on a quarantined node",
                    {"job": job.key.job_id, "restart_count": job.slurm.restart_count},
                    job=job.key,
                    dead=node.slurmd_silent_since is not None and snapshot.now - node.slurmd_silent_since > 1.0,
                )
