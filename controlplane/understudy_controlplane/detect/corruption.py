"""Silent data corruption: a node that is the first to show NaN, again and again.

NaN spreads to every rank with the next collective, and a fault in the program or the data makes it as well as a GPU
that computes wrong. So who shows it later, together with others, or only once is accused of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import FirstNan
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot

ATTEMPTS_MIN = 2


def corruption(snapshot: Snapshot) -> Iterator[Finding]:
    for node, seen in suspected(snapshot).items():
        jobs = sorted({one.job.job_id for one in seen})
        newest = max(seen, key=lambda one: one.received_at)
        yield Finding(
            Signal.CORRUPTION_SUSPECTED,
            "corruption.first_nan",
            node,
            newest.received_at,
            f"the first to show NaN in {len(seen)} attempts (jobs {', '.join(map(str, jobs))}): it may compute wrong: "
            "run `understudy selfcheck` there",
            Evidence({"attempts": len(seen), "jobs": list(jobs), "steps": [one.step for one in seen]}),
        )


def suspected(snapshot: Snapshot) -> dict[str, list[FirstNan]]:
    """Node → the attempts in which it alone was the first, if they are enough for a suspicion."""
    first: dict[str, list[FirstNan]] = {}
    for one in snapshot.first_nans:
        if len(one.nodes) == 1 and one.nodes[0] in snapshot.nodes:
            first.setdefault(one.nodes[0], []).append(one)
    counted = {name: _independent(snapshot.nodes[name], seen) for name, seen in first.items()}
    return {name: seen for name, seen in counted.items() if len(seen) >= ATTEMPTS_MIN}


def _independent(node: NodeView, seen: list[FirstNan]) -> list[FirstNan]:
    """Those since the node was last cleared. The same rank of the same job at the same step again is the sign of a
    fault in the program: it counts once.
    """
    counted: dict[tuple[object, ...], FirstNan] = {}
    for one in seen:
        if one.received_at > node.record.cleared_at:
            counted.setdefault((one.job, one.rank, one.step), one)
    return list(counted.values())
