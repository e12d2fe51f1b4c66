"""Has checkpoints copied from disks of nodes to a shared file system, and to an object store, by agents.

Of each job the newest one, one after another; to an object store no more often than is best for that tier. A copy
counts when all nodes have copied what they wrote. After a restart agents go on where they were.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import JobKey, WrittenCheckpoint
from understudy_controlplane.recover.checkpoint_work import CheckpointPart, CheckpointWork, Nodes, Work
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_wire.facts import Tier
from understudy_wire.files import AnnouncedFile, CopyFiles, FileOutcome, FileResult

log = structlog.get_logger()

WITHIN_SECONDS = 24 * 3600.0
"""Older ones are not copied: the next one comes."""
LOOKED_AT_MAX = 1000


DUE_AGAIN_SECONDS = 60.0
"""Interval at which a checkpoint that was not due is looked at again: another interval may be best by then."""


class Copier(CheckpointWork):
    FINDS_EVERY = 1

    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        nodes: Nodes | None = None,
        interval: Callable[[JobKey], float] = lambda _: 0.0,
    ) -> None:
        """`interval`: seconds between checkpoints of a job in an object store; 0: it is not known."""
        super().__init__(store, policy, clock, on_change, nodes)
        self._interval = interval
        self._not_due: dict[int, float] = {}  # row of a checkpoint → until when it is not looked at again

    def nodes_at_once(self) -> int:
        return self._policy().copy_nodes_at_once

    def _find(self, policy: Checkpoints, now: float) -> bool:
        if not policy.copy_nodes_at_once:
            return True  # what is under way goes on
        waiting = self._store.to_copy(now - WITHIN_SECONDS, now, LOOKED_AT_MAX)
        rows = {one.row for one in waiting}
        self._not_due = {row: until for row, until in self._not_due.items() if row in rows}
        busy = {(one.checkpoint.job_row, one.checkpoint.copy_tier) for one in self._works.values()}
        for one in waiting:
            if one.row in self._works or one.row in self._given_up or (one.job_row, one.copy_tier) in busy:
                continue
            if not self._is_due(one):
                continue
            other = self._store.other_at(one)
            if other:
                self._leave(one, f"{other} lies there: name a place of its own for each step")
            else:
                self._begin(one)
        return True

    def _is_due(self, one: WrittenCheckpoint) -> bool:
        if one.copy_tier is not Tier.OBJECT:
            return True
        now = self._clock.monotonic()
        if now < self._not_due.get(one.row, 0.0):
            return False
        last = self._store.newest_at(one.job_row, Tier.OBJECT)
        if last is None or one.at - last >= self._interval(one.job):
            return True
        self._not_due[one.row] = now + DUE_AGAIN_SECONDS
        return False

    def _make_task(self, number: int, one: WrittenCheckpoint, files: list[AnnouncedFile], is_last: bool) -> CopyFiles:
        del is_last  # a copy is one pass
        rate = self._policy().copy_megabytes_per_second * 1e6
        return CopyFiles(number, one.user_id, one.path, files, rate, one.copy_to)

    def _note(self, work: Work, part: CheckpointPart, result: FileResult) -> None:
        if result.outcome is FileOutcome.COPIED:
            self._done(work, part)
        else:
            self._refuse(work, part, result)

    def _finish(self, work: Work) -> None:
        one = work.checkpoint
        if not self._store.add_copy(one.row):
            self._give_up(work, "it is gone")
            return
        self._forget(work)
        self._on_change()
        took = f"in {self._clock.monotonic() - work.begun_at:.0f} s, by {counted(len(work.parts), 'node')}"
        log.info("checkpoint_copied", job=str(one.job), path=one.copy_to, detail=took)

    def _note_given_up(self, one: WrittenCheckpoint, why: str) -> None:
        """The next checkpoint of its job is copied again."""
        log.warning("checkpoint_not_copied", job=str(one.job), path=one.copy_to, reason=why)
