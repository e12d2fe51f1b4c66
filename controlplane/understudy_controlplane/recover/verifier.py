"""Has checkpoints read back by the agents of the nodes that wrote them: newest first, few nodes at a time.

What was wrong is recorded with the checkpoint, and the restore point passes over it. What cannot be read stays as it
was: nothing is known then. What is under way is in memory only, and begins again after a restart.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from understudy_agent.wire import FileToRead, ReadBack, ReadBackOutcome, ReadBackResult
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import Condition, WrittenCheckpoint
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

LOOK_SECONDS = 10.0
SETTLED_SECONDS = 30.0
"""After its last shard: file servers show a new file late."""
ANSWER_SECONDS_MAX = 6 * 3600.0
OFFERED_SECONDS_MAX = 300.0
"""A node that does not take its part within this is gone, or its agent is older."""
FILES_AT_ONCE = 128
AT_ONCE = 20
GIVEN_UP_MAX = 1000

CONDITIONS = {
    ReadBackOutcome.BAD: Condition.BAD,
    ReadBackOutcome.LOST: Condition.LOST,
    ReadBackOutcome.SUSPECT: Condition.SUSPECT,
}


@dataclass(slots=True)
class _Part:
    """What one node wrote of a checkpoint."""

    node: str
    task: ReadBack
    offered_at: float | None = None  # by the monotonic clock
    taken: bool = False


@dataclass(slots=True)
class _Work:
    checkpoint: WrittenCheckpoint
    parts: list[_Part]
    whole: bool
    proven: bool = True
    done: set[int] = field(default_factory=set)  # numbers of tasks


class Verifier:
    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._policy, self._clock, self._on_change = store, policy, clock, on_change
        self._lock = threading.Lock()
        self._works: dict[int, _Work] = {}  # by row of the checkpoint, newest first
        self._offered: dict[str, _Part] = {}  # by node
        self._given_up: dict[int, None] = {}
        self._last_number = secrets.randbits(48)  # an agent may still have a result from before a restart
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except StoreError as error:
                log.exception("checkpoints_not_looked_up", error=type(error).__name__)

    def stop(self) -> None:
        self._stopped.set()

    def task(self, node: str) -> ReadBack | None:
        """For the answer to a report of this node."""
        part = self._offered.get(node)
        if part is None:
            return None
        part.taken = True
        return part.task

    def is_under_way(self, node: str) -> bool:
        """Its agent has a task."""
        part = self._offered.get(node)
        return part is not None and part.taken

    def take(self, node: str, result: ReadBackResult) -> None:
        """What an agent has found. May raise StoreError: then it comes again."""
        part = self._offered.get(node)
        if part is None or part.task.number != result.number:
            return
        with self._lock:
            work = next((one for one in self._works.values() if part in one.parts), None)
            if work is not None:
                self._note(work, part, result)
            self._offered.pop(node, None)

    def look(self) -> None:
        """Finds what is to be read, and offers as many parts as the policy allows."""
        policy, now = self._policy(), self._clock.now()
        with self._lock:
            if not policy.verify:
                self._works.clear()
                self._offered.clear()
                return
            self._drop_unanswered()
            since = now - policy.verify_within_hours * 3600.0
            for one in self._store.unverified(since, now - SETTLED_SECONDS, AT_ONCE + len(self._given_up)):
                if one.row not in self._works and one.row not in self._given_up and len(self._works) < AT_ONCE:
                    self._works[one.row] = self._work(one, policy, whole=False)
            self._offer(policy)

    def _offer(self, policy: Checkpoints) -> None:
        for work in sorted(self._works.values(), key=lambda one: -one.checkpoint.at):
            for part in work.parts:
                if len(self._offered) >= policy.verify_nodes_at_once:
                    return
                if part.task.number not in work.done and part.node not in self._offered:
                    part.offered_at = self._clock.monotonic()
                    self._offered[part.node] = part

    def _work(self, one: WrittenCheckpoint, policy: Checkpoints, whole: bool) -> _Work:
        by_node: dict[str, list[FileToRead]] = {}
        for shard in self._store.shards(one.row):
            if shard.file:
                file = FileToRead(shard.file, shard.size_bytes, shard.checksum, shard.at)
                by_node.setdefault(shard.node, []).append(file)
        parts = []
        for node, files in by_node.items():
            for first in range(0, len(files), FILES_AT_ONCE):
                self._last_number += 1
                some = files[first : first + FILES_AT_ONCE]
                rate = policy.verify_megabytes_per_second * 1e6
                task = ReadBack(self._last_number, one.user_id, one.path, some, whole, rate, policy.verify_nan)
                parts.append(_Part(node, task))
        return _Work(one, parts, whole)

    def _note(self, work: _Work, part: _Part, result: ReadBackResult) -> None:
        outcome = result.outcome
        if outcome in CONDITIONS:
            self._conclude(work, CONDITIONS[outcome], f"{result.why} (read back on {part.node})")
            return
        if outcome not in (ReadBackOutcome.SAMPLED, ReadBackOutcome.VERIFIED, ReadBackOutcome.READ):
            self._give_up(work, f"{result.why} (on {part.node})")
            return
        work.done.add(result.number)
        work.proven = work.proven and outcome is ReadBackOutcome.VERIFIED
        if len(work.done) < len(work.parts):
            return
        if not work.whole:
            self._works[work.checkpoint.row] = self._work(work.checkpoint, self._policy(), whole=True)
        elif work.proven:
            self._conclude(work, Condition.VERIFIED, "")
        else:
            self._give_up(work, "it can be read, and was announced without checksums")

    def _conclude(self, work: _Work, condition: Condition, why: str) -> None:
        one = work.checkpoint
        self._store.set_condition(one.row, condition, why)
        self._forget(work)
        self._on_change()
        note = log.info if condition is Condition.VERIFIED else log.warning
        note("checkpoint_condition", job=str(one.job), path=one.path, state=condition.value, reason=why)

    def _give_up(self, work: _Work, why: str) -> None:
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.pop(next(iter(self._given_up)))
        self._given_up[work.checkpoint.row] = None
        self._forget(work)
        log.info("checkpoint_not_verified", job=str(work.checkpoint.job), path=work.checkpoint.path, reason=why)

    def _forget(self, work: _Work) -> None:
        self._works.pop(work.checkpoint.row, None)
        for part in work.parts:
            if self._offered.get(part.node) is part:
                del self._offered[part.node]

    def _drop_unanswered(self) -> None:
        now = self._clock.monotonic()
        for part in list(self._offered.values()):
            seconds_max = ANSWER_SECONDS_MAX if part.taken else OFFERED_SECONDS_MAX
            if part.offered_at is not None and now - part.offered_at > seconds_max:
                work = next((one for one in self._works.values() if part in one.parts), None)
                self._offered.pop(part.node, None)
                if work is not None:
                    self._give_up(work, f"{part.node} does not answer")
