"""The restore point of an attempt: chosen once, the same answer for every rank."""

from __future__ import annotations

import threading

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.decide import restore_point
from understudy_controlplane.fleet.job import Attempt, JobKey, KnownJob
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
                chosen = restore_point.choose(
                    self._checkpoints.complete_checkpoints(job.key), self._checkpoints.anomalies([job.key])
                )
                self._newest[job.row] = (chosen.step, chosen.path) if chosen else (0, "")
            return self._newest[job.row]

    def give(self, job: JobKey, job_row: int, attempt: Attempt) -> tuple[int, str]:
        """Step and path; (0, "") to start from the beginning. The first request decides it for all."""
        point = self._fleet.restore_point(job_row, attempt)
        if point is None:
            complete, anomalies = self._checkpoints.complete_checkpoints(job), self._checkpoints.anomalies([job])
            chosen = restore_point.choose(complete, anomalies)
            why = restore_point.explain(complete, anomalies)
            step, path = (chosen.step, chosen.path) if chosen else (0, "")
            self._fleet.record_restore_point(job_row, attempt, step, path, self._clock.now(), why)
            if why:
                log.warning("restore_point_not_the_furthest", job=str(job), attempt=str(attempt), reason=why)
            point = self._fleet.restore_point(job_row, attempt)
        assert point is not None  # written and committed just above
        return point
