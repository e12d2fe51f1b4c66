"""Has checkpoints copied from disks of nodes to a shared file system, by the agents of the nodes that wrote them.

Of each job the newest one, one after another. A copy counts when all nodes have copied what they wrote. What is under
way is in memory only: after a restart it begins again, and agents go on where they were.
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
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import WrittenCheckpoint
from understudy_controlplane.recover.verifier import Verifier
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import StoreError

log = structlog.get_logger()

LOOK_SECONDS = 5.0
WITHIN_SECONDS = 24 * 3600.0
"""Older ones are not copied: the next one comes."""
ANSWER_SECONDS_MAX = 6 * 3600.0
OFFERED_SECONDS_MAX = 300.0
"""A node that does not take its part within this is gone, or its agent is older."""
LOOKED_AT_MAX = 1000
GIVEN_UP_MAX = 1000


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
    begun_at: float
    done: set[int] = field(default_factory=set)  # numbers of tasks


class Copier:
    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        verifier: Verifier,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._policy, self._clock, self._on_change = store, policy, clock, on_change
        self._verifier = verifier
        self._lock = threading.Lock()
        self._works: dict[int, _Work] = {}  # by row of the job
        self._offered: dict[str, _Part] = {}  # by node
        self._given_up: dict[int, None] = {}  # rows of checkpoints
        self._last_number = secrets.randbits(48)
        self._stopped = threading.Event()

    def task(self, node: str) -> ReadBack | None:
        """For the answer to a report of this node. What its agent was given to read back goes first: it has one task
        at a time.
        """
        if self._verifier.is_under_way(node):
            return self._verifier.task(node)
        return self._own_task(node) or self._verifier.task(node)

    def _own_task(self, node: str) -> ReadBack | None:
        part = self._offered.get(node)
        if part is None:
            return None
        part.taken = True
        return part.task

    def take(self, node: str, result: ReadBackResult) -> None:
        """What became of it. May raise StoreError: then it comes again."""
        part = self._offered.get(node)
        if part is None or part.task.number != result.number:
            self._verifier.take(node, result)
            return
        with self._lock:
            work = next((one for one in self._works.values() if part in one.parts), None)
            if work is not None:
                self._note(work, part, result)
            self._offered.pop(node, None)

    def run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except StoreError as error:
                log.exception("checkpoints_not_looked_up", error=type(error).__name__)

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> None:
        """Finds what is to be copied, and offers as many parts as the policy allows. May raise StoreError."""
        policy, now = self._policy(), self._clock.now()
        with self._lock:
            self._drop_unanswered()
            if policy.copy_nodes_at_once:
                for one in self._store.to_copy(now - WITHIN_SECONDS, now, LOOKED_AT_MAX):
                    if one.job_row not in self._works and one.row not in self._given_up:
                        self._works[one.job_row] = self._work(one, policy)
            self._offer(policy)

    def _offer(self, policy: Checkpoints) -> None:
        for work in self._works.values():
            for part in work.parts:
                if len(self._offered) >= policy.copy_nodes_at_once:
                    return
                if part.task.number not in work.done and part.node not in self._offered:
                    part.offered_at = self._clock.monotonic()
                    self._offered[part.node] = part

    def _work(self, one: WrittenCheckpoint, policy: Checkpoints) -> _Work:
        by_node: dict[str, list[FileToRead]] = {}
        for shard in self._store.shards(one.row):
            if shard.file:
                file = FileToRead(shard.file, shard.size_bytes, shard.checksum, shard.at)
                by_node.setdefault(shard.node, []).append(file)
        rate, parts = policy.copy_megabytes_per_second * 1e6, []
        for node, files in by_node.items():
            self._last_number += 1
            task = ReadBack(self._last_number, one.user_id, one.path, files, True, rate, copy_to=one.copy_to)
            parts.append(_Part(node, task))
        return _Work(one, parts, self._clock.monotonic())

    def _note(self, work: _Work, part: _Part, result: ReadBackResult) -> None:
        if result.outcome is not ReadBackOutcome.COPIED:
            self._give_up(work, f"{result.why or result.outcome.value} (on {part.node})")
            return
        work.done.add(result.number)
        if len(work.done) < len(work.parts):
            return
        one = work.checkpoint
        if not self._store.add_copy(one.row):
            self._give_up(work, "it is gone")
            return
        self._forget(work)
        self._on_change()
        took = f"in {self._clock.monotonic() - work.begun_at:.0f} s, by {counted(len(work.parts), 'node')}"
        log.info("checkpoint_copied", job=str(one.job), path=one.copy_to, detail=took)

    def _give_up(self, work: _Work, why: str) -> None:
        """The next checkpoint of its job is copied again."""
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.pop(next(iter(self._given_up)))
        self._given_up[work.checkpoint.row] = None
        self._forget(work)
        log.warning("checkpoint_not_copied", job=str(work.checkpoint.job), path=work.checkpoint.copy_to, reason=why)

    def _forget(self, work: _Work) -> None:
        self._works.pop(work.checkpoint.job_row, None)
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
