"""Which job a Slurm job id belongs to now."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from understudy_controlplane.fleet.job import KnownJob


class JobDirectory:
    """Written by the loop when it has read Slurm, read by the ingest routes. Safe from any thread."""

    def __init__(self, known: Mapping[int, KnownJob]) -> None:
        self._lock = threading.Lock()
        self._jobs = dict(known)

    def get(self, job_id: int) -> KnownJob | None:
        with self._lock:
            return self._jobs.get(job_id)

    def put(self, job: KnownJob) -> None:
        with self._lock:
            self._jobs[job.key.job_id] = job

    def row_of(self, job_id: int) -> int | None:
        job = self.get(job_id)
        return job.row if job else None
