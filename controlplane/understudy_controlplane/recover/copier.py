"""Has checkpoints copied from disks of nodes to a shared file system, by the agents of the nodes that wrote them.

Of each job the newest one, one after another. A copy counts when all nodes have copied what they wrote. After a restart
agents go on where they were.
"""

from __future__ import annotations

import structlog

from understudy_agent.wire import FileToRead, ReadBack, ReadBackOutcome, ReadBackResult
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import WrittenCheckpoint
from understudy_controlplane.recover.agent_work import AgentWork, Part, Work

log = structlog.get_logger()

WITHIN_SECONDS = 24 * 3600.0
"""Older ones are not copied: the next one comes."""
LOOKED_AT_MAX = 1000


class Copier(AgentWork):
    LOOK_SECONDS = 5.0

    def _nodes_at_once(self, policy: Checkpoints) -> int:
        return policy.copy_nodes_at_once

    def _find(self, policy: Checkpoints, now: float) -> bool:
        if not policy.copy_nodes_at_once:
            return True  # what is under way comes to its end
        busy = {one.checkpoint.job_row for one in self._works.values()}
        for one in self._store.to_copy(now - WITHIN_SECONDS, now, LOOKED_AT_MAX):
            if one.job_row not in busy and one.row not in self._given_up:
                self._begin(one)
        return True

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
