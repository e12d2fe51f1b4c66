"""Has checkpoints copied from disks of nodes to a shared file system, and to an object store, by the agents of the
nodes that wrote them.

Of each job the newest one, one after another; to an object store no more often than is best for that tier. A copy
counts when all nodes have copied what they wrote. After a restart agents go on where they were.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from understudy_agent.wire import FileToRead, ReadBack, ReadBackOutcome, ReadBackResult, Tier
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import JobKey, WrittenCheckpoint
from understudy_controlplane.recover.agent_work import AgentWork, Part, Work
from understudy_controlplane.store.checkpoints import CheckpointStore

log = structlog.get_logger()

WITHIN_SECONDS = 24 * 3600.0
"""Older ones are not copied: the next one comes."""
LOOKED_AT_MAX = 1000


Interval = Callable[[JobKey], float]
"""Seconds between checkpoints of this job in an object store; 0: it is not known."""


class Copier(AgentWork):
    LOOK_SECONDS = 5.0

    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        interval: Interval = lambda _: 0.0,
    ) -> None:
        super().__init__(store, policy, clock, on_change)
        self._interval = interval

    def _nodes_at_once(self, policy: Checkpoints) -> int:
        return policy.copy_nodes_at_once

    def _find(self, policy: Checkpoints, now: float) -> bool:
        if not policy.copy_nodes_at_once:
            return True  # what is under way comes to its end
        busy = {(one.checkpoint.job_row, one.checkpoint.copy_tier) for one in self._works.values()}
        for one in self._store.to_copy(now - WITHIN_SECONDS, now, LOOKED_AT_MAX):
            if (one.job_row, one.copy_tier) in busy or one.row in self._works or one.row in self._given_up:
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
        last = self._store.newest_at(one.job_row, Tier.OBJECT)
        return last is None or one.at - last >= self._interval(one.job)

    def _make_task(self, one: WrittenCheckpoint, files: list[FileToRead], whole: bool) -> ReadBack:
        rate = self._policy().copy_megabytes_per_second * 1e6
        return ReadBack(self._last_number, one.user_id, one.path, files, whole, rate, copy_to=one.copy_to)

    def _note(self, work: Work, part: Part, result: ReadBackResult) -> None:
        if result.outcome is not ReadBackOutcome.COPIED:
            self._give_up(work, f"{result.why or result.outcome.value} (on {part.node})")
            return
        work.done.add(result.number)
        if not work.is_done:
            return
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
