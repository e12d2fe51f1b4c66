"""Has checkpoints read back by agents: newest first, few nodes at a time.

What was wrong is recorded with the checkpoint, and the restore point passes over it. What cannot be read stays as it
was: nothing is known then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import structlog

from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import Condition, WrittenCheckpoint
from understudy_controlplane.recover.checkpoint_work import CheckpointPart, CheckpointWork, Work
from understudy_wire.files import AnnouncedFile, FileOutcome, FileResult, ReadFiles

log = structlog.get_logger()

SETTLED_SECONDS = 30.0
"""After its last shard: file servers show a new file late."""
FILES_AT_ONCE = 128
AT_ONCE = 20
OF_USER_MAX = 15
"""The others are left to other users, however many checkpoints a user writes."""

CONDITIONS = {
    FileOutcome.BAD: Condition.BAD,
    FileOutcome.LOST: Condition.LOST,
    FileOutcome.SUSPECT: Condition.SUSPECT,
}


class Verifier(CheckpointWork):
    FINDS_EVERY = 2

    def nodes_at_once(self) -> int:
        return self._policy().verify_nodes_at_once

    def _order(self) -> Iterable[Work]:
        return sorted(self._works.values(), key=lambda one: -one.checkpoint.at)

    def _find(self, policy: Checkpoints, now: float) -> bool:
        if not policy.verify:
            return False
        since = now - policy.verify_within_hours * 3600.0
        given_up = len(self._given_up)
        until = now - SETTLED_SECONDS
        of_user = Counter(work.checkpoint.user_id for work in self._works.values())
        for one in self._store.unverified(since, until, AT_ONCE + given_up, OF_USER_MAX + given_up):
            if one.row in self._works or one.row in self._given_up or len(self._works) >= AT_ONCE:
                continue
            if of_user[one.user_id] < OF_USER_MAX:
                of_user[one.user_id] += 1
                self._begin(one, is_last=False, files_at_once=FILES_AT_ONCE)
        return True

    def _make_task(self, number: int, one: WrittenCheckpoint, files: list[AnnouncedFile], is_last: bool) -> ReadFiles:
        policy = self._policy()
        rate = policy.verify_megabytes_per_second * 1e6
        return ReadFiles(number, one.user_id, one.path, files, rate, is_last, policy.verify_nan)

    def _note(self, work: Work, part: CheckpointPart, result: FileResult) -> None:
        outcome = result.outcome
        if outcome is FileOutcome.LOST and part.stands_in:
            self._give_up(work, f"{part.node} does not see what {', '.join(sorted(part.written_by))} wrote")
        elif outcome in CONDITIONS:
            self._conclude(work, CONDITIONS[outcome], f"{result.why} (read back on {part.node})")
        elif outcome in (FileOutcome.SAMPLED, FileOutcome.VERIFIED, FileOutcome.READ):
            work.proven = work.proven and outcome is FileOutcome.VERIFIED
            self._done(work, part)
        else:
            self._refuse(work, part, result)

    def _finish(self, work: Work) -> None:
        if not work.is_last:
            self._begin(work.checkpoint, files_at_once=FILES_AT_ONCE)
        elif work.proven:
            self._conclude(work, Condition.VERIFIED, "")
        else:
            self._give_up(work, "it can be read, and was announced without checksums")

    def _conclude(self, work: Work, condition: Condition, why: str) -> None:
        one = work.checkpoint
        self._store.set_condition(one.row, condition, why)
        self._forget(work)
        self._on_change()
        note = log.info if condition is Condition.VERIFIED else log.warning
        note("checkpoint_condition", job=str(one.job), path=one.path, state=condition.value, reason=why)

    def _note_given_up(self, one: WrittenCheckpoint, why: str) -> None:
        log.info("checkpoint_not_verified", job=str(one.job), path=one.path, reason=why)
