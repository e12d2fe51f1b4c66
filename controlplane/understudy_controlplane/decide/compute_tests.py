"""After which steps a gang with a slow rank tests its GPUs: when that pays. Pure.

A test costs the gang as long as its slowest GPU takes for it, which is known from the test after its first step. What
it is worth is not known: it may name the reason, and the slowness goes on until there is one. So a gang is tested when
the slowness has cost as much as a test, and again each time that the cost has doubled: tests never cost more than the
slowness, and one that shows nothing is repeated ever more rarely. docs/adr/0052 has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from understudy_controlplane.config import Mode
from understudy_controlplane.detect.compute import OTHERS_MIN
from understudy_controlplane.detect.silence import step_seconds
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_wire.ranks import ComputeTestOrder

MULTIPLICATIONS = 10
"""Multiplications of a test; the hook reports how long the shortest took (`understudy.compute.REPEATS`)."""

MARGIN_SECONDS = 8.0
"""Time for an order to reach all ranks: over five intervals between reports."""

STEPS_AHEAD_MIN = 3
STEP_SECONDS_MIN = 1e-3
AGAIN_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class WantedTest:
    job: JobKey
    node: str  # of the slow rank
    order: ComputeTestOrder
    lost_seconds: float  # by the slowness, of the gang
    price_seconds: float


def wanted(
    snapshot: Snapshot,
    findings: Iterable[Finding],
    lost_at_last: Mapping[tuple[JobKey, str], float],
    ordered: Mapping[JobKey, int],
) -> Iterator[WantedTest]:
    """Yields at most one test of each gang. `lost_at_last`: what the slowness of a node had cost the gang when it was
    last tested. `ordered`: the step of the gang's newest order.
    """
    if snapshot.operator.paused:
        return
    asked: set[JobKey] = set()
    for one in findings:
        job = snapshot.jobs.get(one.job) if one.job is not None and one.lost_seconds else None
        if (
            job is None
            or not job.managed
            or not job.running
            or job.key in asked
            or job.key in snapshot.operator.paused_jobs
            or snapshot.mode_of((), job.key) is Mode.OBSERVE
        ):
            continue
        table = snapshot.progress.tables.get(job.key)
        price = price_seconds(table) if table is not None else None
        newest = -1 if table is None or table.number is None else table.number
        if table is None or price is None or newest < ordered.get(job.key, -1):
            continue
        if pays(one.lost_seconds, price, lost_at_last.get((job.key, one.node), 0.0)):
            asked.add(job.key)
            step = newest + max(STEPS_AHEAD_MIN, math.ceil(MARGIN_SECONDS / max(step_seconds(table), STEP_SECONDS_MIN)))
            attempt = table.attempt
            order = ComputeTestOrder(job.key.job_id, attempt.restart_count, attempt.launch, job.slurm.user_id, step)
            yield WantedTest(job.key, one.node, order, one.lost_seconds, price)


def pays(lost_seconds: float, price_seconds: float, lost_at_last: float) -> bool:
    """A slowness that has cost much less than at the last test is another one. It is known to a few percent only."""
    before = lost_at_last if lost_at_last <= AGAIN_FACTOR * lost_seconds else 0.0
    return lost_seconds >= max(price_seconds, AGAIN_FACTOR * before)


def price_seconds(table: StepTable) -> float | None:
    """Seconds that a test costs the gang; None: too few of its ranks test themselves for a comparison."""
    times = [one.compute_seconds for one in table.training.values() if one.compute_seconds]
    return MULTIPLICATIONS * max(times) if len(times) > OTHERS_MIN else None
