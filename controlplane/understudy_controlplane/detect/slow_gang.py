"""A gang that is slow as a whole: against its own best steps, because its ranks have no faster peer. A warning only:
the program may have another phase, such as longer sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import BLOCK_STEPS, BLOCKS_KEPT, StepTable

SLOWER_RATIO = 1.2
"""Three hundred steps of a healthy gang whose work varies were at most 3 % slower than its best hundred."""


def slow_gangs(snapshot: Snapshot) -> Iterator[Finding]:
    for key, table in snapshot.tables.items():
        job = snapshot.jobs.get(key)
        if job is not None and job.running and (found := slow_gang(table)) is not None:
            yield found


def slow_gang(table: StepTable) -> Finding | None:
    blocks, best = table.durations.blocks, table.durations.best_block
    if len(blocks) < BLOCKS_KEPT or not best:
        return None
    now = min(one.seconds for one in blocks)
    if now < SLOWER_RATIO * best:
        return None
    ratio, ranks = now / best, len(table.nodes)
    lost = ranks * (1 - 1 / ratio)
    return Finding(
        Signal.GANG_SLOW,
        "straggler.gang",
        "",
        blocks[0].begun_at,
        f"the whole gang is slow: a step takes {now:.3g} s, and {best:.3g} s in its best {BLOCK_STEPS} steps; it costs "
        f"{lost:.3g} rank hours in each hour",
        Evidence(
            {
                "seconds": round(now, 6),
                "best_seconds": round(best, 6),
                "ratio": round(ratio, 3),
                "rank_hours_lost_per_hour": round(lost, 3),
                "since": blocks[0].begun_at,
                "restart_count": table.attempt.restart_count,
                "launch": table.attempt.launch,
            }
        ),
        job=table.job,
        nodes=tuple(sorted({name for name in table.nodes if name})),
    )
