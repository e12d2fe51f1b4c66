"""The restore point of an attempt: chosen once, the same answer for every rank."""

from __future__ import annotations

import threading

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.decide import restore_point
from understudy_controlplane.fleet.job import Attempt, JobKey, KnownJob, RestoreAnswer, RestoreDecision
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.fleet import FleetStore

log = structlog.get_logger()


KEPT_MAX = 10_000
"""Restore points in memory."""


class RestorePoints:
    def __init__(self, checkpoints: CheckpointStore, fleet: FleetStore, clock: Clock) -> None:
        self._checkpoints = checkpoints
        self._fleet = fleet
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[int, tuple[int, str]] = {}
        self._looked_at: list[int] | None = None  # nothing is kept yet

    def newest(self, job: KnownJob) -> tuple[int, str]:
        """The restore point of an attempt that would begin now; it is not stored. Computed again only when there are
        new shards, or new anomalies.
        """
        with self._lock:
            if self._looked_at is None:
                self._looked_at = self._checkpoints.newest()
            self._looked_at, changed = self._checkpoints.checkpoint_news(self._looked_at)
            for row in changed:
                self._newest.pop(row, None)
            if len(self._newest) > KEPT_MAX:
                self._newest.clear()  # most of these jobs have ended
            if job.row not in self._newest:
                decision = self._decide(job.key)
                self._newest[job.row] = (decision.step, decision.path)
            return self._newest[job.row]

    def give(self, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        """The first request decides it for all."""
        decision = self._fleet.restore_point(job.row, attempt)
        if decision is None:
            decision = self._decide(job.key)
            if decision.answer is RestoreAnswer.FRESH and not job.managed:
                why = "the job did not ask for Understudy, so its checkpoints are not recorded"
                decision = RestoreDecision(RestoreAnswer.UNKNOWN, why=why)
            self._fleet.record_restore_point(job.row, attempt, decision, self._clock.now())
            if decision.why:
                log.warning(
                    "restore_point_not_the_furthest",
                    job=str(job.key),
                    attempt=str(attempt),
                    answer=decision.answer.value,
                    reason=decision.why,
                )
            decision = self._fleet.restore_point(job.row, attempt)
        assert decision is not None  # written and committed just above
        return decision

    def _decide(self, job: JobKey) -> RestoreDecision:
        store = self._checkpoints
        return restore_point.decide(
            store.complete_checkpoints(job), store.announced_checkpoints(job), store.anomalies([job])
        )
