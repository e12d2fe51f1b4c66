"""A gang that is slow as a whole: against its own best steps, because its ranks have no faster peer, and against the
MFU that its model should reach on its GPUs, where that is known. Where it reports its tokens, the time for each of them
counts: later steps may have more. A warning only: the program may have another phase, such as longer sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.what_changed import what_changed, what_its_nodes_show
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import expected_mfu
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import BLOCK_STEPS, BLOCKS_KEPT, StepTable
from understudy_controlplane.fleet.training import all_report_tokens, mfu, tokens_per_second

SLOWER_RATIO = 1.2
"""Three hundred steps of a healthy gang whose work varies were at most 3 % slower than its best hundred."""


LOW_MFU_SHARE = 0.8
"""Share of the expected MFU."""


def slow_gangs(snapshot: Snapshot, policy: Straggler) -> Iterator[Finding]:
    for key, table in snapshot.progress.tables.items():
        job = snapshot.jobs.get(key)
        if job is None or not job.running:
            continue
        expected = expected_mfu(job.slurm.comment) or policy.mfu_expected
        found = slow_gang(table, snapshot) or (low_mfu(table, snapshot, expected) if expected else None)
        if found is not None:
            yield found


def slow_gang(table: StepTable, snapshot: Snapshot) -> Finding | None:
    blocks, best = table.durations.blocks, table.durations.best
    if len(blocks) < BLOCKS_KEPT or best is None:
        return None
    ratios = [one.slower_than(best) for one in blocks]
    ratio, ranks = min(ratios), len(table.nodes)
    if ratio < SLOWER_RATIO:
        return None
    now = blocks[ratios.index(ratio)]
    lost = ranks * (1 - 1 / ratio)
    best = best.with_tokens_of(now)
    changed = what_changed(snapshot, table, best, now)
    of_tokens = " for as many tokens" if now.tokens_per_second and best.tokens_per_second else ""
    used = mfu(table, snapshot.gpus_on)
    expected = f"; MFU is {used:.1%}, and was {used * ratio:.1%}" if used is not None else ""
    return Finding(
        Signal.GANG_SLOW,
        "straggler.gang",
        "",
        blocks[0].begun_at,
        f"the whole gang is slow: a step takes {now.seconds:.3g} s, and {best.seconds:.3g} s in its best {BLOCK_STEPS} "
        f"steps{of_tokens}; it costs {lost:.3g} rank hours in each hour{expected}; "
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


def low_mfu(table: StepTable, snapshot: Snapshot, expected: float) -> Finding | None:
    """Each of the last blocks stayed below what is expected. Also for a gang that was never faster."""
    blocks, best = table.durations.blocks, table.durations.best
    if len(blocks) < BLOCKS_KEPT or best is None or not all_report_tokens(table):
        return None
    gpus_of = snapshot.gpus_on
    reached = [mfu(table, gpus_of, one.tokens_per_second) for one in blocks if one.tokens_per_second]
    known = [one for one in reached if one is not None]
    if len(known) < BLOCKS_KEPT or max(known) >= LOW_MFU_SHARE * expected:
        return None
    used, ranks = max(known), len(table.nodes)
    lost = ranks * (1 - used / expected)
    was = mfu(table, gpus_of, best.tokens_per_second) if best.tokens_per_second else None
    always = was is None or was < LOW_MFU_SHARE * expected
    since = table.heard_since if always else blocks[0].begun_at
    shown = what_its_nodes_show(snapshot, table)
    return Finding(
        Signal.GANG_SLOW,
        "straggler.gang_mfu",
        "",
        since,
        f"the whole gang is slow: its MFU is {used:.1%}, and {expected:.1%} is expected"
        + (", since its first steps that are known" if always else "")
        + f"; it costs {lost:.3g} rank hours in each hour; "
        + (f"its nodes show: {'; '.join(shown)}" if shown else "its nodes show no reason"),
        Evidence(
            {
                "mfu": round(used, 4),
                "mfu_expected": round(expected, 4),
                "tokens_per_second": tokens_per_second(table),
                "rank_hours_lost_per_hour": round(lost, 3),
                "since": since,
                "changed": [*shown],
                "restart_count": table.attempt.restart_count,
                "launch": table.attempt.launch,
            }
        ),
        job=table.job,
        nodes=tuple(sorted({name for name in table.nodes if name})),
    )
