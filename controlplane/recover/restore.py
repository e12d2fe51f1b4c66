"""The restore point of an attempt: chosen once, told to every rank that asks."""

from __future__ import annotations

import structlog

from controlplane.clock import Clock
from controlplane.decide import restore_point
from controlplane.fleet.job import Attempt, JobKey
from controlplane.store.facts import FactStore
from controlplane.store.fleet import FleetStore

log = structlog.get_logger()


class RestorePoints:
    def __init__(self, facts: FactStore, fleet: FleetStore, clock: Clock) -> None:
        self._facts = facts
        self._fleet = fleet
        self._clock = clock

    def tell(self, job: JobKey, job_row: int, attempt: Attempt) -> tuple[int, str]:
        """Step and path; (0, "") to start from the beginning. Whoever asks first settles it for all."""
        told = self._fleet.restore_point(job_row, attempt)
        if told is None:
            complete, anomalies = self._facts.complete_checkpoints(job), self._facts.anomalies([job])
            chosen = restore_point.choose(complete, anomalies)
            why = restore_point.explain(complete, anomalies)
            step, path = (chosen.step, chosen.path) if chosen else (0, "")
            self._fleet.tell_restore_point(job_row, attempt, step, path, self._clock.now(), why)
            if why:
                log.warning("restore_point.not_the_furthest", job=str(job), attempt=str(attempt), why=why)
            told = self._fleet.restore_point(job_row, attempt)
        assert told is not None  # written and committed just above
        return told
