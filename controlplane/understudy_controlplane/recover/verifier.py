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
from understudy_controlplane.recover.agent_work import AgentWork, Part, Work
from understudy_wire.messages import FileToRead, ReadBack, ReadBackOutcome, ReadBackResult

log = structlog.get_logger()

SETTLED_SECONDS = 30.0
"""After its last shard: file servers show a new file late."""
FILES_AT_ONCE = 128
AT_ONCE = 20
OF_USER_MAX = 15
"""The others are left to other users, however many checkpoints a user writes."""

CONDITIONS = {
    ReadBackOutcome.BAD: Condition.BAD,
    ReadBackOutcome.LOST: Condition.LOST,
    ReadBackOutcome.SUSPECT: Condition.SUSPECT,
}


class Verifier(AgentWork):
    LOOK_SECONDS = 10.0

    def _nodes_at_once(self, policy: Checkpoints) -> int:
        return policy.verify_nodes_at_once

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
                self._begin(one, whole=False, files_at_once=FILES_AT_ONCE)
        return True

    def _make_task(self, one: WrittenCheckpoint, files: list[FileToRead], whole: bool) -> ReadBack:
        policy = self._policy()
        rate = policy.verify_megabytes_per_second * 1e6
        return ReadBack(self._last_number, one.user_id, one.path, files, whole, rate, policy.verify_nan)

    def _note(self, work: Work, part: Part, result: ReadBackResult) -> None:
        outcome = result.outcome
        if outcome is ReadBackOutcome.LOST and part.stands_in:
            self._give_up(work, f"{part.node} does not see what {', '.join(sorted(part.written_by))} wrote")
            return
        if outcome in CONDITIONS:
            self._conclude(work, CONDITIONS[outcome], f"{result.why} (read back on {part.node})")
            return
        if outcome not in (ReadBackOutcome.SAMPLED, ReadBackOutcome.VERIFIED, ReadBackOutcome.READ):
            self._give_up(work, f"{result.why} (on {part.node})")
            return
        work.done.add(result.number)
        work.proven = work.proven and outcome is ReadBackOutcome.VERIFIED
        if not work.is_done:
            return
        if not work.whole:
            self._begin(work.checkpoint, whole=True, files_at_once=FILES_AT_ONCE)
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
