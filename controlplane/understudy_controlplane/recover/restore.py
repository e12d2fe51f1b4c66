"""The restore point of an attempt: chosen once, the same answer for every rank."""

from __future__ import annotations

import threading

import structlog

from understudy_agent.wire import RestoreOutcome
from understudy_controlplane.clock import Clock
from understudy_controlplane.decide import restore_point
from understudy_controlplane.decide.run_lineage import lineage
from understudy_controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    KnownJob,
    RestoreAnswer,
    RestoreDecision,
    RunJob,
    TrainingRun,
)
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.fleet import FleetStore

log = structlog.get_logger()


KEPT_MAX = 10_000
"""Restore points in memory."""

LOOK_SECONDS_MAX = 15.0
"""A rank that has not reported within this whether its checkpoint is there may be gone: another one looks."""

ANY_LATER = Attempt(2**31 - 1)
"""For a decision that is not about one attempt."""


class RestorePoints:
    def __init__(self, checkpoints: CheckpointStore, fleet: FleetStore, clock: Clock) -> None:
        self._checkpoints = checkpoints
        self._fleet = fleet
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[int, tuple[int, str]] = {}
        self._looked_at: list[int] | None = None  # nothing is kept yet
        self._looking: dict[tuple[int, Attempt], tuple[str, float]] = {}
        """Node that looks whether the attempt's checkpoint is there, and until when it is waited for."""
        self._settled: set[tuple[int, Attempt]] = set()
        self._runs: set[int] = set()
        """Jobs whose run is known."""

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
                decision = self._decide(job, ANY_LATER)
                self._newest[job.row] = (decision.step, decision.path)
            return self._newest[job.row]

    def forget(self) -> None:
        """Something else is known of a job's checkpoints, which any job of its run may continue."""
        with self._lock:
            self._newest.clear()

    def explain(self, job: KnownJob) -> tuple[RestoreDecision, list[tuple[Checkpoint, str]]]:
        """What an attempt that would begin now is answered, and what speaks against each checkpoint of its run."""
        known = self._catalogue(job)
        return self._decide_of(known, job, ANY_LATER), restore_point.judged(known, job.key, ANY_LATER)

    def give(self, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        """The first request decides it for all."""
        decision = self._fleet.restore_point(job.row, attempt)
        if decision is not None:
            return decision
        self._fleet.record_restore_point(job.row, attempt, self._decide(job, attempt), self._clock.now())
        return self._stored(job, attempt)

    def note_run(self, job: KnownJob, run: TrainingRun) -> None:
        """A rank reports to which run its job belongs, before its first question is answered."""
        with self._lock:
            if job.row in self._runs:
                return
        self._fleet.note_run(job.row, run)
        with self._lock:
            if len(self._runs) >= KEPT_MAX:
                self._runs.clear()
            self._runs.add(job.row)

    def looker(self, job: KnownJob, attempt: Attempt, node: str) -> str:
        """The node whose rank is to look whether the checkpoint is there, before any rank of the attempt restores it;
        empty: that is settled. Where it is not there, the next good one is chosen. One node looks for all: on a file
        system that lags, each would see something else. `node` asks.
        """
        decision = self.give(job, attempt)
        with self._lock:
            if (job.row, attempt) in self._settled:
                return ""
            while decision.answer is RestoreAnswer.RESTORE:
                outcomes = self._outcomes(job, attempt, decision)
                if RestoreOutcome.SEEN in outcomes:
                    break
                if RestoreOutcome.MISSING not in outcomes:
                    return self._choose_looker(job, attempt, node)
                self._looking.pop((job.row, attempt), None)
                other = self._decide(job, attempt)
                self._fleet.replace_restore_point(job.row, attempt, decision.path, other, self._clock.now())
                decision = self._stored(job, attempt)
            self._looking.pop((job.row, attempt), None)
            if len(self._settled) >= KEPT_MAX:
                self._settled.clear()
            self._settled.add((job.row, attempt))
            return ""

    def _choose_looker(self, job: KnownJob, attempt: Attempt, node: str) -> str:
        """The first that asks; another one when it has reported nothing in time."""
        now = self._clock.monotonic()
        looker, until = self._looking.get((job.row, attempt), (node, 0.0))
        if now >= until:
            looker, until = node, now + LOOK_SECONDS_MAX
            self._looking[job.row, attempt] = looker, until
        return looker

    def _outcomes(self, job: KnownJob, attempt: Attempt, decision: RestoreDecision) -> set[RestoreOutcome]:
        reports = self._checkpoints.restore_reports(job.key)
        return {one.outcome for one in reports if (one.attempt, one.path) == (attempt, decision.path)}

    def _stored(self, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        decision = self._fleet.restore_point(job.row, attempt)
        assert decision is not None  # written and committed by the caller
        if decision.why:
            log.warning(
                "restore_point_not_the_furthest",
                job=str(job.key),
                attempt=str(attempt),
                answer=decision.answer.value,
                reason=decision.why,
            )
        return decision

    def _decide(self, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        return self._decide_of(self._catalogue(job), job, attempt)

    @staticmethod
    def _decide_of(known: restore_point.Catalogue, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        decision = restore_point.decide(known, job.key, attempt)
        if decision.answer is RestoreAnswer.FRESH and not job.managed:
            why = "the job did not ask for Understudy, so its checkpoints are not recorded"
            decision = RestoreDecision(RestoreAnswer.UNKNOWN, why=why)
        return decision

    def _catalogue(self, job: KnownJob) -> restore_point.Catalogue:
        store = self._checkpoints
        run, jobs = self._fleet.run_jobs(job.row)
        own = next((one for one in jobs if one.row == job.row), RunJob(job.row, job.key))
        others, named = [one for one in jobs if one is not own], not run.folder
        found = lineage(own, others, named)
        if found.doubt:  # jobs that saved nothing cast none
            found = lineage(own, [one for one in others if store.announced_checkpoints(one.key)], named)
        keys, rows = [job.key, *(one.key for one in found.jobs)], [job.row, *(one.row for one in found.jobs)]
        complete = [one for key in keys for one in store.complete_checkpoints(key, rows)]
        allowed = [one for one in complete if job.may_save_at(one.path)]
        elsewhere = "its run saved checkpoints, all outside of the folders in the job's comment"
        return restore_point.Catalogue(
            allowed,
            [] if complete else [one for key in keys for one in store.announced_checkpoints(key)],
            store.anomalies(keys),
            [one for key in keys for one in store.restore_reports(key)],
            elsewhere if complete and not allowed else found.doubt,
        )
