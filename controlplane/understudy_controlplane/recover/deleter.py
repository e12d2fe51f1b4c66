"""Has checkpoints deleted that their jobs keep no longer, by agents, with the rights of the job's user.

Only of running jobs whose Slurm comment says how many to keep. First the agents look whether the files are what was
announced, and not pinned; then the checkpoint is restored no more; then the files go. What was broken off
goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints, Mode
from understudy_controlplane.decide.checkpoint_retention import dispensable
from understudy_controlplane.fleet.job import Checkpoint, Condition, Job, Keep, KnownJob, WrittenCheckpoint, keep
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.recover.checkpoint_work import CheckpointPart, CheckpointWork, Work
from understudy_controlplane.recover.restore import ANY_LATER, RestorePoints, RunCheckpoints
from understudy_controlplane.store.checkpoints import EXPIRED_WHY, CheckpointStore
from understudy_wire.facts import Tier
from understudy_wire.files import AnnouncedFile, DeleteFiles, FileOutcome, FileResult

log = structlog.get_logger()

AT_ONCE = 20
"""Checkpoints of the fleet."""

OF_ALL_NODES = (Tier.SHARED, Tier.OBJECT)
"""Any node sees what lies there."""


@dataclass(frozen=True, slots=True)
class View:
    snapshot: Callable[[], Snapshot | None]
    known: Callable[[int], KnownJob | None]  # a job by its id
    worked_on: Callable[[], Set[int]] = frozenset  # rows of checkpoints that agents copy or read back


class Deleter(CheckpointWork):
    FINDS_EVERY = 12

    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        points: RestorePoints,
        view: View,
    ) -> None:
        super().__init__(store, policy, clock, points.forget)
        self._points, self._view = points, view
        self._jobs: dict[int, KnownJob] = {}  # row of a checkpoint → the job that keeps it no longer

    def nodes_at_once(self) -> int:
        return self._policy().delete_nodes_at_once

    def _find(self, policy: Checkpoints, now: float) -> bool:
        snapshot = self._view.snapshot()
        if not policy.delete_nodes_at_once or snapshot is None or not _acts(snapshot):
            return False
        for job in snapshot.jobs.values():
            if _keeps(snapshot, job) is not None:
                self._find_of(job, now)
        self._jobs = {row: job for row, job in self._jobs.items() if row in self._works}
        return True

    def _find_of(self, job: Job, now: float) -> None:
        known, kept = self._view.known(job.key.job_id), keep(job.slurm.comment)
        if known is None or known.key != job.key or kept is None:
            return
        found = self._points.of_run(known)
        if found is None:
            return
        begun = [one for one in found.catalogue.complete if one.condition is Condition.EXPIRED]
        worked_on = self._view.worked_on()
        looked_for = [one for one in self._dispensable(found, known, kept, now) if one.row not in worked_on]
        is_last = {one.row: one in begun for one in (*begun, *looked_for)}
        rows = [row for row in is_last if row not in self._works and row not in self._given_up]
        nodes = job.slurm.nodes
        for one in self._store.written(rows[: max(AT_ONCE - len(self._works), 0)]):
            self._jobs[one.row] = known
            self._begin(one, is_last[one.row], on_node=nodes[0] if one.tier in OF_ALL_NODES and nodes else "")

    @staticmethod
    def _dispensable(found: RunCheckpoints, known: KnownJob, kept: Keep, now: float) -> list[Checkpoint]:
        return dispensable(found.catalogue, (known.key, ANY_LATER), found.announced, kept, now, found.steps_in_use)

    def _make_task(self, number: int, one: WrittenCheckpoint, files: list[AnnouncedFile], is_last: bool) -> DeleteFiles:
        return DeleteFiles(number, one.user_id, one.path, files, only_look=not is_last)

    def _note(self, work: Work, part: CheckpointPart, result: FileResult) -> None:
        if result.outcome is (FileOutcome.DELETED if work.is_last else FileOutcome.DELETABLE):
            self._done(work, part)
        else:
            self._refuse(work, part, result)

    def _finish(self, work: Work) -> None:
        if not work.is_last:
            self._expire(work)
            return
        one = work.checkpoint
        self._store.note_deleted(one.row)
        self._forget(work)
        self._on_change()
        log.info("checkpoint_deleted", job=str(one.job), path=one.path, reason=EXPIRED_WHY)

    def _expire(self, work: Work) -> None:
        """Unless it is needed or worked on again, or a person has paused that, since the agents looked."""
        one = work.checkpoint
        self._forget(work)
        known, snapshot = self._jobs.get(one.row), self._view.snapshot()
        job = snapshot.jobs.get(known.key) if snapshot is not None and known is not None else None
        kept = _keeps(snapshot, job) if snapshot is not None and job is not None and _acts(snapshot) else None
        found = self._points.of_run(known) if known is not None else None
        if known is None or kept is None or found is None or one.row in self._view.worked_on():
            return
        still = self._dispensable(found, known, kept, self._clock.now())
        if one.row in {other.row for other in still} and self._store.expire(one.row, EXPIRED_WHY):
            self._on_change()
            self._begin(one, on_node=work.parts[0].node if one.tier in OF_ALL_NODES else "")

    def _note_given_up(self, one: WrittenCheckpoint, why: str) -> None:
        log.warning("checkpoint_not_deleted", job=str(one.job), path=one.path, reason=why)


def _acts(snapshot: Snapshot) -> bool:
    return snapshot.mode is not Mode.OBSERVE and not snapshot.operator.paused


def _keeps(snapshot: Snapshot, job: Job) -> Keep | None:
    """How many checkpoints the job says that it keeps. None: nothing of it is deleted now."""
    asks = job.running and job.managed and job.key not in snapshot.operator.paused_jobs
    asks = asks and snapshot.mode_of((), job.key) is not Mode.OBSERVE
    return keep(job.slurm.comment) if asks else None
