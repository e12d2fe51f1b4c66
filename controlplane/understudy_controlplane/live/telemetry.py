"""The newest report of every node, and the step times of every running gang."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.gpu import GpusReadable, reads_nvml
from understudy_controlplane.fleet.job import Attempt, JobKey, Reached
from understudy_controlplane.fleet.steps import Durations, StepTable, Suspended
from understudy_controlplane.live.allocations import Allocations
from understudy_controlplane.live.compute_test_orders import ComputeTestOrders
from understudy_controlplane.live.job_notes import JobNotes
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.live.step_buffer import RankNow, StepBuffer
from understudy_controlplane.live.wire_unknown import WireUnknown
from understudy_wire.hardware import GpuStatus, Part
from understudy_wire.messages import Report
from understudy_wire.places import Place
from understudy_wire.ranks import RANKS_PER_NODE_MAX, ProgramFiles, RankWindow
from understudy_wire.values import WORK_MAX

STEP_SECONDS_MAX = 1e6
RANKS_PER_NODE_USUAL = 16
"""Ranks that a gang may have on each node whatever Slurm allotted: a program may start several ranks on one processor.
"""


class UnknownNode(Exception):
    """A report from a node that Slurm does not know."""


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """A running job whose ranks may report. Any user's process can claim to be a rank, so only windows of an attempt
    that Slurm shows, from a node that the attempt runs on, are kept."""

    restart_count: int
    user_id: int
    nodes: frozenset[str]
    suspended_or_resumed_at: int | None = None  # as `SlurmJob` has it
    ranks_max: int | None = None  # the same

    def may_have(self, ranks: int) -> bool:
        """What a rank claims to be one of takes memory for each."""
        of_node = RANKS_PER_NODE_MAX if self.ranks_max is None else RANKS_PER_NODE_USUAL
        return ranks <= max(len(self.nodes) * of_node, self.ranks_max or 0)


@dataclass(frozen=True, slots=True)
class Heard:
    report: Report
    at: float  # by the control plane's clock
    gpus: GpusReadable | None = None  # None: this agent reads no GPUs
    parts: tuple[Part, ...] = ()  # of the last report that had them
    programs: tuple[ProgramFiles, ...] = ()  # the same


class Telemetry:
    """Written by the route for reports, read by the loop. Every method is safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._heard: dict[str, Heard] = {}
        self._steps: dict[int, StepBuffer] = {}
        self._suspended: dict[int, tuple[StepBuffer, float]] = {}
        """Job → its steps when it was suspended, and when that was, until it finishes one again."""
        self._learnt: dict[int, Durations] = {}
        self._counts: dict[int, int] = {}
        """Job → what its earlier attempts took, and where the count of the last one began."""
        self._expected: dict[int, ExpectedJob] = {}
        self.allocations = Allocations()
        self.saves = SaveOrders()
        self.compute_tests = ComputeTestOrders()
        self.job_notes = JobNotes()
        self.unknown = WireUnknown()
        self.reports_total = 0
        self.windows_dropped_total = 0
        self.facts_dropped_total = 0

    def know(self, nodes: Collection[str]) -> None:
        """Take these as all nodes: reports of others are refused."""
        with self._lock:
            self._known = frozenset(nodes)
            for gone in self._heard.keys() - self._known:
                del self._heard[gone]

    def knows(self, node: str) -> bool:
        with self._lock:
            return node in self._known

    def receive(self, report: Report, now: float) -> list[str]:
        """Take the report without implausible step-time windows. Returns a sentence for each window left out.

        One rank's implausible window does not invalidate its node's report. Raises UnknownNode; then nothing was taken.
        """
        with self._lock:
            if report.node not in self._known:
                raise UnknownNode(report.node)
            before = self._heard.get(report.node)
            goes_on = before is not None and before.report.boot_id == report.boot_id
            parts = tuple(report.parts) or (before.parts if before is not None and goes_on else ())
            programs = report.programs if report.programs is not None else (before.programs if before else ())
            gpus = _gpus_readable(report, before, now)
            self._heard[report.node] = Heard(report, now, gpus, parts, tuple(programs))
            self.reports_total += 1
            dropped: list[str] = []
            asking: list[RankWindow] = []
            is_repeated = before is not None and before.report == report  # it was not answered in time
            for window in () if is_repeated else report.ranks:
                objection = self._objection(window, report.node)
                if objection:
                    dropped.append(f"step times of rank {window.rank} of job {window.job_id}: {objection}")
                    continue
                buffer = self._buffer(window)
                buffer.add(window, report.node, now)
                if buffer.advanced_at:
                    self._suspended.pop(window.job_id, None)
                if window.saves is not None:
                    asking.append(window)
            self.saves.receive(asking, now)
            self.windows_dropped_total += len(dropped)
            return dropped

    def note_facts_dropped(self, count: int) -> None:
        """Facts that were not believed, or that no database stores."""
        with self._lock:
            self.facts_dropped_total += count

    def forget(self) -> None:
        """Forgets every node, as after a start."""
        with self._lock:
            self._heard.clear()
            self._steps.clear()
            self._suspended.clear()
            self.saves.forget()

    def heard(self) -> dict[str, Heard]:
        with self._lock:
            return dict(self._heard)

    def latest(self, node: str) -> Heard | None:
        """The node's newest report; None: there is none."""
        with self._lock:
            return self._heard.get(node)

    def expect(
        self,
        jobs: Mapping[int, ExpectedJob],
        shown: Collection[int] = (),
        suspended: Mapping[int, float] | None = None,
    ) -> None:
        """Take these as all running jobs, by job id. Step times of others, and of earlier attempts, are dropped, and
        those of a job that was suspended: also where that began and ended between two readings of Slurm.

        `shown`: all that Slurm shows. Of a gang that waits for its next attempt, what earlier ones took stays known.
        `suspended`: jobs that are suspended, or were, and when that was last changed.
        """
        suspended = suspended or {}
        with self._lock:
            before, self._expected = self._expected, dict(jobs)
            for job_id, buffer in list(self._steps.items()):
                if not _goes_on(before.get(job_id), self._expected.get(job_id), buffer.attempt.restart_count):
                    self._learnt[job_id], self._counts[job_id] = buffer.durations, buffer.count_from
                    del self._steps[job_id]
                    if job_id in suspended:
                        self._suspended.setdefault(job_id, (buffer, suspended[job_id]))
            self._suspended = {job_id: one for job_id, one in self._suspended.items() if job_id in suspended}
            for gone in [one for one in (*self._learnt, *self._counts) if one not in jobs and one not in shown]:
                self._learnt.pop(gone, None)
                self._counts.pop(gone, None)
            restarts = {job_id: job.restart_count for job_id, job in self._expected.items()}
            self.saves.expect(restarts)
            self.compute_tests.expect(restarts)

    def ordered_to_save(self) -> frozenset[int]:
        """Jobs with an order to save of which not all ranks have reported the end."""
        return self.saves.unsettled()

    def progress(self) -> dict[tuple[int, Attempt], Reached]:
        """(job id, latest attempt) → how far it has come; without any step: -1."""
        with self._lock:
            return {
                (job_id, buffer.attempt): Reached(buffer.last_step, buffer.advanced_at, buffer.count_from)
                for job_id, buffer in self._steps.items()
            }

    def count_on(self, counts: Mapping[int, int]) -> None:
        """Job id → where the count of its newest attempt began, as an earlier process of the control plane saw it."""
        with self._lock:
            self._counts = {**counts, **self._counts}

    def nodes_of(self, job_id: int, restart_count: int) -> frozenset[str] | None:
        """The nodes of this attempt; None: Slurm does not show it as running."""
        with self._lock:
            expected = self._expected.get(job_id)
        return expected.nodes if expected is not None and expected.restart_count == restart_count else None

    def place_of(self, job_id: int, attempt: Attempt) -> Place | None:
        """Place of this attempt, counted as in `progress`; None: no rank of it has reported a step."""
        with self._lock:
            buffer = self._steps.get(job_id)
            if buffer is None or buffer.attempt != attempt or buffer.last_step < 0:
                return None
            return Place(buffer.last_step, buffer.count_from)

    def table(self, job: JobKey, restart_count: int) -> StepTable | None:
        """The step times of the job's latest launch."""
        with self._lock:
            buffer = self._steps.get(job.job_id)
            return buffer.table(job) if buffer and buffer.attempt.restart_count == restart_count else None

    def suspended(self, job: JobKey, restart_count: int) -> Suspended | None:
        """None: the attempt was not suspended, or has finished a step since."""
        with self._lock:
            buffer, at = self._suspended.get(job.job_id, (None, 0.0))
            same = buffer is not None and buffer.attempt.restart_count == restart_count
            return Suspended(buffer.table(job), at) if buffer is not None and same else None

    def ranks(self, job_id: int, wanted: range) -> tuple[Attempt, list[RankNow]] | None:
        """The job's running attempt and those of its ranks that are wanted; None: none has reported."""
        with self._lock:
            buffer = self._steps.get(job_id)
            return (buffer.attempt, buffer.ranks(wanted)) if buffer else None

    def _objection(self, window: RankWindow, node: str) -> str:
        """Why the window is implausible; empty: it is not."""
        job = self._expected.get(window.job_id)
        if job is None or node not in job.nodes or window.restart_count != job.restart_count:
            return f"Slurm knows of no attempt {window.restart_count} running on {node} now"
        if window.user_id != job.user_id:
            return f"they come from user {window.user_id}"
        if window.rank >= window.world_size or not job.may_have(window.world_size):
            return f"it cannot be in a world of {window.world_size} on {len(job.nodes)} nodes"
        return _impossible(window) or self._differs_from_gang(window)

    def _differs_from_gang(self, window: RankWindow) -> str:
        known = self._steps.get(window.job_id)
        if known is None or known.ended or Attempt(window.restart_count, window.launch) > known.attempt:
            return ""
        if window.launch < known.attempt.launch:
            return f"launch {known.attempt.launch} of the gang is under way, they are of launch {window.launch}"
        if known.world_size != window.world_size:
            return f"the gang has {known.world_size} ranks, it says {window.world_size}"
        return ""

    def _buffer(self, window: RankWindow) -> StepBuffer:
        """A new launch gets a new buffer: it may repeat steps of the launch before. So does a gang of another size that
        follows in the same script.
        """
        attempt = Attempt(window.restart_count, window.launch)
        buffer = self._steps.get(window.job_id)
        if buffer is None or (buffer.attempt, buffer.world_size) != (attempt, window.world_size):
            learnt = buffer.durations if buffer is not None else self._learnt.get(window.job_id)
            count_from = buffer.count_from if buffer is not None else self._counts.get(window.job_id, 0)
            if buffer is not None and buffer.attempt == attempt and count_from + window.first_step <= buffer.last_step:
                count_from = buffer.last_step + 1 - window.first_step
            buffer = self._steps[window.job_id] = StepBuffer(attempt, window.world_size, learnt, count_from)
        return buffer


def _impossible(window: RankWindow) -> str:
    """Name of the impossible value; empty: none."""
    times = window.self_seconds
    if times and not (min(times) >= 0 and max(times) < STEP_SECONDS_MAX):
        return "they are impossible"
    data, work, wall = window.data_seconds, window.work, window.wall_seconds
    if wall and _differ(wall, times, STEP_SECONDS_MAX):
        return "their wall_seconds are impossible"
    if (data and _differ(data, times, STEP_SECONDS_MAX)) or (work and _differ(work, times, WORK_MAX)):
        return "their data_seconds or work are impossible"
    for one in window.transfers:
        if one.peer >= window.world_size or (one.seconds and _differ(one.seconds, times, STEP_SECONDS_MAX)):
            return f"their transfers with rank {one.peer} are impossible"
    return ""


def _differ(values: Sequence[float | None], times: Sequence[float], most: float) -> bool:
    """Not one plausible value for each time."""
    known = [value for value in values if value is not None]
    return len(values) != len(times) or bool(known and not (min(known) >= 0 and max(known) <= most))


def _gpus_readable(report: Report, before: Heard | None, now: float) -> GpusReadable | None:
    if not reads_nvml(report):
        return None
    count = sum(gpu.status is not GpuStatus.UNREADABLE for gpu in report.gpus)
    earlier = before.gpus if before is not None and before.report.boot_id == report.boot_id else None
    if before is None or earlier is None:
        return GpusReadable(count, now)
    return earlier.followed_by(count, before.at)


def _goes_on(before: ExpectedJob | None, now: ExpectedJob | None, restart_count: int) -> bool:
    """True if the attempt of this count has run since it was looked at before."""
    if now is None or now.restart_count != restart_count:
        return False
    return before is None or before.suspended_or_resumed_at == now.suspended_or_resumed_at
