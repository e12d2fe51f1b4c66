"""Which jobs were on a node at a time that has just passed.

A job that a GPU's error ends is often gone from Slurm before the error has arrived here: so jobs are remembered for a
while after their end. An error in a job's first second may come before Slurm was read again; it is then of no job, and
accuses nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from understudy_controlplane.fleet.job import Job, JobThere

REMEMBERED_SECONDS = 900.0
"""An event that arrives later than this after its job's end is about no job known here."""

MARGIN_SECONDS = 5.0
"""The node's clock and ours may differ, and Slurm is read now and then. Jobs that met within it are both named."""


@dataclass(frozen=True, slots=True)
class _Span:
    job: JobThere
    nodes: frozenset[str]
    since: float
    until: float | None = None


class Allocations:
    """Written by the loop when it has read Slurm, read by the doors. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[tuple[JobThere, int], _Span] = {}
        self._read_at: float | None = None

    def note(self, jobs: Iterable[Job], now: float) -> None:
        """These jobs run now, and no others."""
        running = {
            (JobThere(job.key.job_id, job.key.submit_at, job.slurm.user), job.slurm.restart_count): job
            for job in jobs
            if job.running
        }
        with self._lock:
            for key, job in running.items():
                known = self._spans.get(key)
                if known is None or known.until is not None:
                    # It started since the last reading; those of the first reading after their last submission.
                    since = float(job.slurm.submit_at) if self._read_at is None else self._read_at
                    self._spans[key] = _Span(key[0], frozenset(job.slurm.nodes), since)
            for key, span in list(self._spans.items()):
                if span.until is None and key not in running:
                    self._spans[key] = replace(span, until=now)
                elif span.until is not None and now - span.until > REMEMBERED_SECONDS:
                    del self._spans[key]
            self._read_at = now

    def on(self, node: str, at: float) -> list[JobThere]:
        """By id; empty where it is not known."""
        with self._lock:
            return sorted(
                {
                    span.job
                    for span in self._spans.values()
                    if node in span.nodes
                    and span.since - MARGIN_SECONDS <= at
                    and (span.until is None or at <= span.until + MARGIN_SECONDS)
                }
            )
