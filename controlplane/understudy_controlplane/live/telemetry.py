"""The newest report of every node, and the step times of every running gang."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.detect.usual import is_usual
from understudy_controlplane.fleet.gpu import GpusReadable, reads_nvml
from understudy_controlplane.fleet.holder import Leader
from understudy_controlplane.fleet.job import Attempt, JobKey, Reached
from understudy_controlplane.fleet.node_views import Versions, versions_of
from understudy_controlplane.fleet.steps import Durations, Interrupted, StepTable
from understudy_controlplane.live.allocations import Allocations
from understudy_controlplane.live.compute_test_orders import ComputeTestOrders
from understudy_controlplane.live.for_ranks import ForRanks
from understudy_controlplane.live.leaders import Leaders
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.live.step_buffer import RANKS_AT_ONCE, RankNow, StepBuffer
from understudy_controlplane.live.wire_unknown import WireUnknown
from understudy_wire.hardware import GpuStatus, Part
from understudy_wire.messages import Report
from understudy_wire.places import NOWHERE, Place
from understudy_wire.ranks import RANKS_PER_NODE_MAX, HangQuestion, JobNote, ProgramFiles, RankWindow
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


GAP_SECONDS = 60.0
"""Reports come each second. Shorter gaps count as time of the gang: no hang is shorter than minutes, and an overloaded
node that reports every ten seconds must not keep one from being seen.
"""


STOOD_SECONDS = 10.0
"""A gang that is interrupted stood still if it had finished no step for longer than this. Shorter limits of a hang make
no sense.
"""

INTERRUPTED_SECONDS = 3600.0
"""Seconds for which it is known that a gang stood when its attempt ended. Slurm may show its job for days."""


@dataclass(frozen=True, slots=True)
class Left:
    """Steps of a gang that was interrupted. No rank adds to them any more, so they are read without the lock."""

    buffer: StepBuffer
    at: float


@dataclass(frozen=True, slots=True)
class Heard:
    report: Report
    at: float  # by the control plane's clock
    gpus: GpusReadable | None = None  # None: this agent reads no GPUs
    parts: tuple[Part, ...] = ()  # of the last report that had them
    programs: tuple[ProgramFiles, ...] = ()  # the same
    usual: bool = False  # it shows nothing but hardware that works
    versions: Versions = ()
    uuids: tuple[str, ...] = ()  # of its GPUs; the same value while they stay


def uuids_of(report: Report) -> tuple[str, ...]:
    return tuple([gpu.uuid for gpu in report.gpus])


class Telemetry:
    """Written by the route for reports, read by the loop. Every method is safe from any thread."""

    def __init__(self, own: Leader = Leader()) -> None:  # noqa: B008 - frozen
        self._lock = threading.Lock()
        self.leaders = Leaders(own)
        self._known: frozenset[str] = frozenset()
        self._heard: dict[str, Heard] = {}
        self._steps: dict[int, StepBuffer] = {}
        self._interrupted: dict[int, Left | Interrupted] = {}
        """Job → its steps when it was interrupted, until it finishes one again. Their table is made once."""
        self._learnt: dict[int, Durations] = {}
        self._places: dict[int, tuple[Attempt, Place]] = {}
        """Job → what its earlier attempts took, and the attempt that was heard last, with the place that it reached."""
        self._expected: dict[int, ExpectedJob] = {}
        self.allocations = Allocations()
        self.saves = SaveOrders()
        self.compute_tests = ComputeTestOrders()
        self.job_notes: ForRanks[JobNote] = ForRanks(first_rank_only=True)
        self.hang_questions: ForRanks[HangQuestion] = ForRanks(first_rank_only=False)
        self.unknown = WireUnknown()
        self.reports_total = 0
        self.windows_dropped_total = 0
        self.facts_dropped_total = 0

    def know(self, nodes: Collection[str]) -> None:
        """Take these as all nodes: reports of others are refused."""
        with self._lock:
            if nodes == self._known:
                return
            self._known = frozenset(nodes)
            for gone in self._heard.keys() - self._known:
                del self._heard[gone]

    def knows(self, node: str) -> bool:
        with self._lock:
            return node in self._known

    def note_leaders(self, report: Report, now: float) -> str:
        """Address of another control plane that the node follows; empty: it follows this one."""
        return self.leaders.note(report.node, report.leaders, now) if self.knows(report.node) else ""

    def receive(self, report: Report, now: float) -> list[str]:
        """Take the report without implausible step-time windows. Returns a sentence for each window left out.

        One rank's implausible window does not invalidate its node's report. Raises UnknownNode; then nothing was taken.
        """
        usual, versions, uuids = is_usual(report, report.sent_at - now), versions_of(report), uuids_of(report)
        with self._lock:
            if report.node not in self._known:
                raise UnknownNode(report.node)
            before = self._heard.get(report.node)
            goes_on = before is not None and before.report.boot_id == report.boot_id
            parts = tuple(report.parts) or (before.parts if before is not None and goes_on else ())
            programs = report.programs if report.programs is not None else (before.programs if before else ())
            gpus = _gpus_readable(report, before, now)
            uuids = before.uuids if before is not None and before.uuids == uuids else uuids
            self._heard[report.node] = Heard(report, now, gpus, parts, tuple(programs), usual, versions, uuids)
            self.reports_total += 1
            dropped: list[str] = []
            asking: list[RankWindow] = []
            is_repeated = before is not None and before.report == report  # it was not answered in time
            gang, objection, buffer = None, "", None
            for window in () if is_repeated else report.ranks:
                of_gang = (window.job_id, window.restart_count, window.launch, window.user_id, window.world_size)
                if of_gang != gang:  # nearly all ranks of a node are of the same gang
                    gang, objection, buffer = of_gang, self._objection(window, report.node), None
                why = objection or _impossible(window)
                if why:
                    dropped.append(f"step times of rank {window.rank} of job {window.job_id}: {why}")
                    continue
                buffer = buffer or self._buffer(window, now)
                buffer.add(window, report.node, now)
                if buffer.advanced_at:
                    self._interrupted.pop(window.job_id, None)
                if window.saves is not None:
                    asking.append(window)
            if before is not None and now - before.at > GAP_SECONDS:
                self._note_gap(report.node, before.at, now)
            self.saves.receive(asking, now)
            self.windows_dropped_total += len(dropped)
            return dropped

    def _note_gap(self, node: str, since: float, until: float) -> None:
        """Steps in reports that did not arrive are lost: the gangs of this node may have made some."""
        for job_id, job in self._expected.items():
            buffer = self._steps.get(job_id) if node in job.nodes else None
            if buffer is not None:
                buffer.note_unheard(since, until)

    def note_facts_dropped(self, count: int) -> None:
        """Facts that were not believed, or that no database stores."""
        with self._lock:
            self.facts_dropped_total += count

    def forget(self) -> None:
        """Forgets every node, as after a start."""
        with self._lock:
            self._heard.clear()
            self._places |= {job_id: (buffer.attempt, buffer.place) for job_id, buffer in self._steps.items()}
            self._steps.clear()
            self._interrupted.clear()
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
        read_at: float = 0.0,
    ) -> None:
        """Take these as all running jobs, by job id. Step times of others, and of earlier attempts, are dropped, and
        those of a job that was suspended: also where that began and ended between two readings of Slurm.

        `shown`: all that Slurm shows. Of a gang that waits for its next attempt, what earlier ones took stays known,
        and at which step it stood. `suspended`: jobs that are suspended, or were, and when that was last changed: these
        go on from where they stood, however late.
        """
        suspended = suspended or {}
        with self._lock:
            before, self._expected = self._expected, dict(jobs)
            for job_id, left in list(self._interrupted.items()):
                goes_on = job_id in suspended or read_at - left.at <= INTERRUPTED_SECONDS
                if not goes_on or (job_id not in jobs and job_id not in shown):
                    del self._interrupted[job_id]
            for job_id, buffer in list(self._steps.items()):
                if not _goes_on(before.get(job_id), self._expected.get(job_id), buffer.attempt.restart_count):
                    self._learnt[job_id], self._places[job_id] = buffer.durations, (buffer.attempt, buffer.place)
                    del self._steps[job_id]
                    self._note_interrupted(job_id, buffer, suspended.get(job_id, read_at))
            for gone in [one for one in (*self._learnt, *self._places) if one not in jobs and one not in shown]:
                self._learnt.pop(gone, None)
                self._places.pop(gone, None)
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

    def count_on(self, places: Mapping[int, tuple[Attempt, Place]]) -> None:
        """Job id → its newest attempt with a step, and the place of that, as an earlier process of the control plane
        saw it.
        """
        with self._lock:
            self._places = {**places, **self._places}

    def nodes_of(self, job_id: int, restart_count: int) -> frozenset[str] | None:
        """The nodes of this attempt; None: Slurm does not show it as running."""
        with self._lock:
            expected = self._expected.get(job_id)
        return expected.nodes if expected is not None and expected.restart_count == restart_count else None

    def place_of(self, job_id: int, attempt: Attempt) -> Place | None:
        """Place of this attempt, counted as in `progress`; None: no step of it is known."""
        with self._lock:
            buffer = self._steps.get(job_id)
            same = buffer is not None and buffer.attempt == attempt
            return buffer.place if buffer is not None and same and buffer.place.step >= 0 else None

    def table(self, job: JobKey, restart_count: int) -> StepTable | None:
        """The step times of the job's latest launch."""
        with self._lock:
            buffer = self._steps.get(job.job_id)
            if buffer is None or buffer.attempt.restart_count != restart_count:
                return None
            if buffer.world_size <= RANKS_AT_ONCE or buffer.has_table(job):
                return buffer.table(job)
        copy = buffer.copied(self._lock)  # no report waits for the table of a large gang
        table = copy.table(job)
        with self._lock:
            buffer.keep_table_of(copy)
        return table

    def interrupted_jobs(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._interrupted)

    def interrupted(self, job: JobKey, restart_count: int) -> Interrupted | None:
        """None: no attempt up to this one was interrupted while it stood within the hour, or the gang has finished a
        step since.
        """
        with self._lock:
            found = self._interrupted.get(job.job_id)
        if isinstance(found, Left):
            made = Interrupted(found.buffer.table(job), found.at)
            with self._lock:
                if self._interrupted.get(job.job_id) is found:
                    self._interrupted[job.job_id] = made
            found = made
        known = found is not None and found.table.job == job and found.table.attempt.restart_count <= restart_count
        return found if known else None

    def _note_interrupted(self, job_id: int, buffer: StepBuffer, at: float) -> None:
        """One whose ranks had ended, or that had finished a step just before, stood nowhere."""
        if not buffer.ended and at - (buffer.advanced_at or buffer.heard_since) > STOOD_SECONDS:
            self._interrupted.setdefault(job_id, Left(buffer, at))

    def ranks(self, job_id: int, wanted: range) -> tuple[Attempt, list[RankNow]] | None:
        """The job's running attempt and those of its ranks that are wanted; None: none has reported."""
        with self._lock:
            buffer = self._steps.get(job_id)
            return (buffer.attempt, buffer.ranks(wanted)) if buffer else None

    def _objection(self, window: RankWindow, node: str) -> str:
        """Why its gang is not believed to run here; empty: it is."""
        job = self._expected.get(window.job_id)
        if job is None or node not in job.nodes or window.restart_count != job.restart_count:
            return f"Slurm knows of no attempt {window.restart_count} running on {node} now"
        if window.user_id != job.user_id:
            return f"they come from user {window.user_id}"
        if not job.may_have(window.world_size):
            return f"it cannot be in a world of {window.world_size} on {len(job.nodes)} nodes"
        return self._differs_from_gang(window)

    def _differs_from_gang(self, window: RankWindow) -> str:
        known, attempt = self._steps.get(window.job_id), (window.restart_count, window.launch)
        if known is None or (attempt == known.attempt and window.world_size == known.world_size):
            return ""
        if attempt > known.attempt or known.ended:
            return ""
        if window.launch < known.attempt.launch:
            return f"launch {known.attempt.launch} of the gang is under way, they are of launch {window.launch}"
        if known.world_size != window.world_size:
            return f"the gang has {known.world_size} ranks, it says {window.world_size}"
        return ""

    def _buffer(self, window: RankWindow, now: float) -> StepBuffer:
        """A new launch gets a new buffer: it may repeat steps of the launch before. So does a gang of another size that
        follows in the same script.
        """
        attempt = Attempt(window.restart_count, window.launch)
        buffer = self._steps.get(window.job_id)
        if buffer is None or buffer.world_size != window.world_size or buffer.attempt != attempt:
            learnt = buffer.durations if buffer is not None else self._learnt.get(window.job_id)
            heard, before = self._places.get(window.job_id, (attempt, NOWHERE))
            if buffer is not None:
                heard, before = buffer.attempt, buffer.place
                self._note_interrupted(window.job_id, buffer, now)
            if heard != attempt:
                before = Place(count_from=before.count_from)
            elif buffer is not None and before.count_from + window.first_step <= before.step:
                before = Place(before.step, before.step + 1 - window.first_step)
            buffer = self._steps[window.job_id] = StepBuffer(attempt, window.world_size, learnt, before)
        return buffer


def _impossible(window: RankWindow) -> str:
    """Name of the impossible value; empty: none."""
    if window.rank >= window.world_size:
        return f"it cannot be in a world of {window.world_size}"
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
