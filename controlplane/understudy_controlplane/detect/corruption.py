"""Silent data corruption: a node that is the first to show NaN, again and again, or on which a step gave another result
when it was computed again.

NaN spreads to every rank with the next collective, and a fault in the program or the data makes it as well as a GPU
that computes wrong. So who shows it later, together with others, or only once is accused of nothing. A job whose steps
give other results on several nodes is not deterministic, which accuses none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import FirstNan, JobKey, WrongResult
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
    for node, wrong in computed_wrong(snapshot).items():
        last = max(wrong, key=lambda one: one.received_at)
        known: list[Json] = [*dict.fromkeys(one.job.job_id for one in wrong)]
        job, rank, step = last.job.job_id, last.rank, last.step
        yield Finding(
            Signal.CORRUPTION_SUSPECTED,
            "corruption.recompute",
            node,
            last.received_at,
            f"step {step} of job {job} gave another result when rank {rank} computed it again there"
            f"{f', and {len(wrong) - 1} other steps did' if len(wrong) > 1 else ''}: it may compute wrong",
            Evidence({"jobs": known, "steps": [one.step for one in wrong]}),
        )


def computed_wrong(snapshot: Snapshot) -> dict[str, list[WrongResult]]:
    """Node → the wrong results since it was last cleared, of jobs in which it is the only node with such."""
    nodes_of: dict[JobKey, set[str]] = {}
    for one in snapshot.history.wrong_results:
        nodes_of.setdefault(one.job, set()).add(one.node)
    found: dict[str, list[WrongResult]] = {}
    for one in snapshot.history.wrong_results:
        node = snapshot.nodes.get(one.node)
        if len(nodes_of[one.job]) == 1 and node is not None and one.received_at > node.record.cleared_at:
            found.setdefault(one.node, []).append(one)
    return found


def suspected(snapshot: Snapshot) -> dict[str, list[FirstNan]]:
    """Node → the attempts in which it alone was the first, if they are enough for a suspicion."""
    first: dict[str, list[FirstNan]] = {}
    for one in snapshot.history.first_nans:
        if one.of_several and len(one.nodes) == 1 and one.nodes[0] in snapshot.nodes:
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
