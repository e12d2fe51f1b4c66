"""Orders gangs with a slow rank to test their GPUs between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from understudy_controlplane.decide.compute_tests import wanted
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.compute_test_orders import ComputeTestOrders

log = structlog.get_logger()


class ComputeTests:
    """Called by the loop alone. In memory: after a start a gang is tested once more."""

    def __init__(self, live: ComputeTestOrders) -> None:
        self._live = live
        self._lost: dict[tuple[JobKey, str], float] = {}

    def tick(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        slow = {(one.job, one.node) for one in findings if one.lost_seconds}
        self._lost = {key: lost for key, lost in self._lost.items() if key[0] in snapshot.progress.tables}
        if not slow:
            return
        steps = {key: self._live.step_of(key.job_id, table.attempt) for key, table in snapshot.progress.tables.items()}
        ordered = {key: step for key, step in steps.items() if step is not None}
        for one in wanted(snapshot, findings, self._lost, ordered):
            self._live.order(one.order)
            self._lost[one.job, one.node] = one.lost_seconds
            reason = f"slowness has cost {one.lost_seconds:.1f} s of the gang, a test costs {one.price_seconds:.3f} s"
            log.info("compute_test_ordered", job=str(one.job), node=one.node, step=one.order.step, reason=reason)
