"""Remembers the jobs that were on a node in the last minutes.

A job that a GPU error ended is often gone from Slurm before the error arrives here, so jobs are kept for 15 minutes
after their end. An error in a job's first second may arrive before Slurm is read again; it then belongs to no job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from understudy_controlplane.fleet.job import Job, JobThere

KEPT_SECONDS = 900.0
"""An event that arrives later than this after the end of its job is assigned to no job."""

MARGIN_SECONDS = 5.0
"""The clocks of node and control plane may differ, and Slurm is read every second or so. Two jobs that followed each
other within this time are both named."""


@dataclass(frozen=True, slots=True)
class _Span:
    job: JobThere
    nodes: frozenset[str]
    since: float
    until: float | None = None


class Allocations:
    """Written by the loop when it has read Slurm, read by the ingest routes. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[tuple[JobThere, int], _Span] = {}
        self._read_at: float | None = None

    def note(self, jobs: Iterable[Job], now: float) -> None:
        """Take these as all running jobs."""
        running = {
            (JobThere(job.key.job_id, job.key.submit_at, job.slurm.user), job.slurm.restart_count): job
            for job in jobs
            if job.running
        }
        with self._lock:
            for key, job in running.items():
                known = self._spans.get(key)
                if known is None or known.until is not None:
                    # It started after the last reading; a job of the first reading started after its last submission.
                    since = float(job.slurm.submit_at) if self._read_at is None else self._read_at
                    self._spans[key] = _Span(key[0], frozenset(job.slurm.nodes), since)
            for key, span in list(self._spans.items()):
                if span.until is None and key not in running:
                    self._spans[key] = replace(span, until=now)
                elif span.until is not None and now - span.until > KEPT_SECONDS:
                    del self._spans[key]
            self._read_at = now

    def on(self, node: str, first: float, last: float | None = None) -> list[JobThere]:
        """Jobs at a moment, or at any time between two. Sorted by job id; empty if no job is known."""
        last = first if last is None else last
        with self._lock:
            return sorted(
                {
                    span.job
                    for span in self._spans.values()
                    if node in span.nodes
                    and span.since - MARGIN_SECONDS <= last
                    and (span.until is None or first <= span.until + MARGIN_SECONDS)
                }
            )
