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
        self._newest: dict[int, RestoreDecision] = {}
        self._looked_at: list[int] | None = None  # nothing is kept yet
        self._looking: dict[tuple[int, Attempt], tuple[str, float]] = {}
        """Node that looks whether the attempt's checkpoint is there, and until when it is waited for."""
        self._settled: set[tuple[int, Attempt]] = set()
        self._runs: set[int] = set()
        """Jobs whose run is known."""
        self._ranks: dict[tuple[int, Attempt], int] = {}
        """Size of the gang for which the attempt's restore point was decided, or looked at; 0: it was not known."""

    def newest(self, job: KnownJob) -> RestoreDecision:
        """The restore point of an attempt that would begin now, with a gang of any size; it is not stored. Computed
        again only when there are new shards, or new anomalies.
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
                self._newest[job.row] = self._decide(job, ANY_LATER)
            return self._newest[job.row]

    def forget(self) -> None:
        """Something else is known of a job's checkpoints, which any job of its run may continue."""
        with self._lock:
            self._newest.clear()

    def explain(self, job: KnownJob, ranks: int = 0) -> tuple[int, RestoreDecision, list[tuple[Checkpoint, str]]]:
        """What an attempt that would begin now, with a gang of so many ranks, is answered, and what speaks against each
        checkpoint of its run. 0 `ranks`: as many as the job's last gang. Returns how many, too; 0: it is not known.
        """
        ranks = ranks or self._checkpoints.ranks_of(job.key)
        known = self._catalogue(job)
        judged = restore_point.judged(known, job.key, ANY_LATER, ranks)
        return ranks, self._decide_of(known, job, ANY_LATER, ranks), judged

    def give(self, job: KnownJob, attempt: Attempt, ranks: int = 0) -> RestoreDecision:
        """The first request decides it for all ranks. `ranks` is the size of the gang of the rank that asks; 0: no rank
        asks. What was decided before a rank of the gang asked is decided again if this gang cannot restore it.
        """
        decision, of_attempt = self._fleet.restore_point(job.row, attempt), (job.row, attempt)
        before = self._ranks.get(of_attempt, -1)
        if decision is not None and ranks <= max(before, 0):
            return decision
        ranks = max(ranks, self._checkpoints.ranks_of(job.key, attempt))  # a process beside the gang may ask first
        self._note_ranks(of_attempt, ranks)
        if decision is None:
            made = self._decide(job, attempt, ranks)
            self._fleet.record_restore_point(job.row, attempt, made, self._clock.now())
            return self._stored(job, attempt)
        known = self._catalogue(job)
        if self._stays(decision, known, before, ranks):
            return decision
        other = self._decide_of(known, job, attempt, ranks)
        self._fleet.replace_restore_point(job.row, attempt, decision.path, other, self._clock.now())
        with self._lock:
            self._settled.discard(of_attempt)
            self._looking.pop(of_attempt, None)
        return self._stored(job, attempt)

    def _note_ranks(self, of_attempt: tuple[int, Attempt], ranks: int) -> None:
        if len(self._ranks) >= KEPT_MAX:
            self._ranks.clear()
        self._ranks[of_attempt] = ranks

    @staticmethod
    def _stays(decision: RestoreDecision, known: restore_point.Catalogue, before: int, ranks: int) -> bool:
        """For a gang of this size. `before`: for which size it was decided; -1: by an earlier process."""
        if decision.answer is RestoreAnswer.UNKNOWN:
            return not 0 < before < ranks
        named = (one for one in known.complete if (one.step, one.path) == (decision.step, decision.path))
        return not any(restore_point.other_size(one, ranks) for one in named)

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

    def looker(self, job: KnownJob, attempt: Attempt, node: str, ranks: int = 0) -> str:
        """The node whose rank is to look whether the checkpoint is there, before any rank of the attempt restores it;
        empty: that is settled. Where it is not there, the next good one is chosen. One node looks for all: on a file
        system that lags, each would see something else. `node` asks, for a gang of so many `ranks`.
        """
        decision = self.give(job, attempt, ranks)
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
                other = self._decide(job, attempt, self._ranks.get((job.row, attempt), 0))
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

    def _decide(self, job: KnownJob, attempt: Attempt, ranks: int = 0) -> RestoreDecision:
        return self._decide_of(self._catalogue(job), job, attempt, ranks)

    @staticmethod
    def _decide_of(known: restore_point.Catalogue, job: KnownJob, attempt: Attempt, ranks: int) -> RestoreDecision:
        decision = restore_point.decide(known, job.key, attempt, ranks)
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
