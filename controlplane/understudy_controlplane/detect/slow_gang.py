"""A gang that is slow as a whole: against its own best steps, because its ranks have no faster peer. A warning only:
the program may have another phase, such as longer sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.detect.what_changed import what_changed
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import BLOCK_STEPS, BLOCKS_KEPT, StepTable
from understudy_controlplane.fleet.training import mfu

SLOWER_RATIO = 1.2
"""Three hundred steps of a healthy gang whose work varies were at most 3 % slower than its best hundred."""


def slow_gangs(snapshot: Snapshot) -> Iterator[Finding]:
    for key, table in snapshot.tables.items():
        job = snapshot.jobs.get(key)
        if job is not None and job.running and (found := slow_gang(table, snapshot)) is not None:
            yield found


def slow_gang(table: StepTable, snapshot: Snapshot) -> Finding | None:
    blocks, best = table.durations.blocks, table.durations.best
    if len(blocks) < BLOCKS_KEPT or best is None:
        return None
    now = min(blocks, key=lambda one: one.seconds)
    if now.seconds < SLOWER_RATIO * best.seconds:
        return None
    ratio, ranks = now.seconds / best.seconds, len(table.nodes)
    lost = ranks * (1 - 1 / ratio)
    changed = what_changed(snapshot, table, best, now)
    used = mfu(table, lambda name: snapshot.nodes[name].gpus if name in snapshot.nodes else ())
    expected = f"; MFU is {used:.1%}, and was {used * ratio:.1%}" if used is not None else ""
    return Finding(
        Signal.GANG_SLOW,
        "straggler.gang",
        "",
        blocks[0].begun_at,
        f"the whole gang is slow: a step takes {now.seconds:.3g} s, and {best.seconds:.3g} s in its best {BLOCK_STEPS} "
        f"steps; it costs {lost:.3g} rank hours in each hour{expected}; "
        + (f"what is different: {'; '.join(changed)}" if changed else "nothing that is known is different"),
        Evidence(
            {
                "seconds": round(now.seconds, 6),
                "best_seconds": round(best.seconds, 6),
                "best_at": best.begun_at,
                "ratio": round(ratio, 3),
                "rank_hours_lost_per_hour": round(lost, 3),
                "since": blocks[0].begun_at,
                "mfu": None if used is None else round(used, 4),
                "mfu_expected": None if used is None else round(used * ratio, 4),
                "changed": [*changed],
                "restart_count": table.attempt.restart_count,
                "launch": table.attempt.launch,
            }
        ),
        job=table.job,
        nodes=tuple(sorted({name for name in table.nodes if name})),
    )
