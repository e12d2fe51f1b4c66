"""The newest picture of every node and every running gang."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agents.wire import RankWindow, Report
from controlplane.fleet.job import JobKey
from controlplane.fleet.steps import StepTable
from controlplane.live.step_buffer import StepBuffer

WORLD_SIZE_MAX = 131_072
"""Larger gangs than this are refused: a rank's ring of steps takes half a KiB."""


class UnknownNode(Exception):
    """A report from a node that Slurm does not know."""


class TelemetryRefused(Exception):
    """A rank's window contradicts itself or what is known of its gang."""


@dataclass(frozen=True, slots=True)
class Heard:
    report: Report
    at: float  # by our clock


class Telemetry:
    """Written by the door for reports, read by the loop. Every method is safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._heard: dict[str, Heard] = {}
        self._steps: dict[tuple[int, int], StepBuffer] = {}
        self.reports_total = 0

    def know(self, nodes: Collection[str]) -> None:
        """From now on these nodes exist, and no others."""
        with self._lock:
            self._known = frozenset(nodes)
            for gone in self._heard.keys() - self._known:
                del self._heard[gone]

    def receive(self, report: Report, now: float) -> None:
        """Raises UnknownNode or TelemetryRefused; then nothing of the report was taken."""
        with self._lock:
            if report.node not in self._known:
                raise UnknownNode(report.node)
            for window in report.ranks:
                self._check(window)
            self._heard[report.node] = Heard(report, now)
            for window in report.ranks:
                self._buffer(window).add(window, report.node, now)
            self.reports_total += 1

    def heard(self) -> dict[str, Heard]:
        with self._lock:
            return dict(self._heard)

    def keep_jobs(self, jobs: Mapping[int, int]) -> None:
        """Forget step times of other jobs, and of attempts before the given restart count (job id → count)."""
        with self._lock:
            for key in list(self._steps):
                job_id, restart_count = key
                if restart_count < jobs.get(job_id, restart_count + 1):
                    del self._steps[key]

    def progress(self) -> dict[tuple[int, int], tuple[int, float]]:
        """(job id, restart count) → furthest step finished by any rank, and when that was reported."""
        with self._lock:
            return {key: (buffer.last_step, buffer.advanced_at) for key, buffer in self._steps.items()}

    def table(self, job: JobKey, restart_count: int) -> StepTable | None:
        with self._lock:
            buffer = self._steps.get((job.job_id, restart_count))
            return buffer.table(job, restart_count) if buffer else None

    def _check(self, window: RankWindow) -> None:
        if not 0 < window.world_size <= WORLD_SIZE_MAX:
            raise TelemetryRefused(
                f"world_size {window.world_size} of job {window.job_id} is not in 1..{WORLD_SIZE_MAX}"
            )
        if not 0 <= window.rank < window.world_size:
            raise TelemetryRefused(
                f"rank {window.rank} of job {window.job_id} is outside its world of {window.world_size}"
            )
        if window.first_step < 0:
            raise TelemetryRefused(f"first_step {window.first_step} of job {window.job_id} is negative")
        known = self._steps.get((window.job_id, window.restart_count))
        if known is not None and known.world_size != window.world_size:
            raise TelemetryRefused(
                f"job {window.job_id} has {known.world_size} ranks; rank {window.rank} says {window.world_size}"
            )

    def _buffer(self, window: RankWindow) -> StepBuffer:
        key = (window.job_id, window.restart_count)
        buffer = self._steps.get(key)
        if buffer is None:
            buffer = self._steps[key] = StepBuffer(window.world_size)
        return buffer
