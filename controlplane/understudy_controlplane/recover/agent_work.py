"""Work on files of checkpoints that agents do: each node what its own ranks wrote, one task of a node at a time. Where
such a node is gone and the place is shared, another node of the gang does its part, else one that wrote another part.

A task comes to an agent with the answer to its report, and its result with the agent's next ones. What is under way is
in memory only, and begins again after a restart of the control plane.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import JobKey, WrittenCheckpoint
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import StoreError
from understudy_wire.messages import FileToRead, ReadBack, ReadBackResult, Tier

log = structlog.get_logger()

ANSWER_SECONDS_MAX = 2.5 * 3600.0
"""An agent ends a task by itself after two hours."""
LEFT_TO_OTHERS = 4
"""A quarter of the places is for users who have none."""
OFFERED_SECONDS_MAX = 300.0
"""A node that does not take its part within this is gone, or its agent is older."""
GIVEN_UP_MAX = 1000
HEARD_SECONDS_MAX = 60.0
"""A node whose agent has reported nothing for longer is given nothing, where another can do it."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Who may stand in for a node that is gone."""

    gang: Callable[[JobKey], Sequence[str]] = lambda _: ()  # nodes on which the job runs now
    heard: Callable[[], Set[str]] = frozenset  # nodes whose agents report


@dataclass(slots=True)
class Part:
    """What one node wrote of a checkpoint, or does in the place of such a node."""

    node: str
    task: ReadBack
    written_by: Set[str]
    offered_at: float | None = None  # by the monotonic clock
    taken: bool = False
    unanswered: set[str] = field(default_factory=set)  # nodes that were to do it and did not

    @property
    def stands_in(self) -> bool:
        """Its node did not write all of it, and may not see the place."""
        return self.written_by != {self.node}


@dataclass(slots=True)
class Work:
    checkpoint: WrittenCheckpoint
    parts: list[Part]
    begun_at: float  # by the monotonic clock
    whole: bool = True  # False: the first of two passes over its files
    proven: bool = True
    done: set[int] = field(default_factory=set)  # numbers of tasks

    @property
    def is_done(self) -> bool:
        return len(self.done) == len(self.parts)


class AgentWork(ABC):
    """One kind of it."""

    LOOK_SECONDS: float

    def __init__(
        self,
        store: CheckpointStore,
        policy: Callable[[], Checkpoints],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        nodes: Nodes | None = None,
    ) -> None:
        self._store, self._policy, self._clock, self._on_change = store, policy, clock, on_change
        self._nodes = nodes or Nodes()
        self._lock = threading.Lock()
        self._works: dict[int, Work] = {}  # by row of the checkpoint
        self._offered: dict[str, Part] = {}  # by node
        self._given_up: dict[int, None] = {}  # rows of checkpoints
        self._turns: dict[int, int] = {}  # user → number of the last task that was offered
        self._last_number = secrets.randbits(48)  # an agent may still have a result from before a restart
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self.LOOK_SECONDS):
            try:
                self.look()
            except StoreError as error:
                log.exception("checkpoints_not_looked_up", error=type(error).__name__)

    def stop(self) -> None:
        self._stopped.set()

    def task(self, node: str) -> ReadBack | None:
        """Task that the answer to this node's report carries."""
        part = self._offered.get(node)
        if part is None:
            return None
        part.taken = True
        return part.task

    def is_under_way(self, node: str) -> bool:
        """Its agent has a task."""
        part = self._offered.get(node)
        return part is not None and part.taken

    def take(self, node: str, result: ReadBackResult) -> bool:
        """What became of a task; False: it is of no task of this kind. May raise StoreError: then it comes again."""
        part = self._offered.get(node)
        if part is None or part.task.number != result.number:
            return False
        with self._lock:
            work = self._work_of(part)
            if work is not None:
                self._note(work, part, result)
            self._offered.pop(node, None)
        return True

    def look(self) -> None:
        """Finds what is to be done, and offers as many parts as the policy allows. May raise StoreError."""
        policy = self._policy()
        with self._lock:
            self._drop_unanswered()
            if not self._find(policy, self._clock.now()):
                self._works.clear()
                self._offered.clear()
                return
            self._offer(self._nodes_at_once(policy))

    def rows(self) -> frozenset[int]:
        """Rows of the checkpoints whose files agents work on."""
        with self._lock:
            return frozenset(self._works)

    @abstractmethod
    def _find(self, policy: Checkpoints, now: float) -> bool:
        """Adds to `_works` what is to be done. False: this kind of work is switched off."""

    @abstractmethod
    def _nodes_at_once(self, policy: Checkpoints) -> int: ...

    @abstractmethod
    def _make_task(self, one: WrittenCheckpoint, files: list[FileToRead], whole: bool) -> ReadBack: ...

    @abstractmethod
    def _note(self, work: Work, part: Part, result: ReadBackResult) -> None: ...

    @abstractmethod
    def _note_given_up(self, one: WrittenCheckpoint, why: str) -> None: ...

    def _place(self, one: WrittenCheckpoint, node: str) -> str:
        """Node that does the part of this node, which wrote it."""
        heard = self._nodes.heard()
        return node if node in heard else self._other(one, node, self._nodes.gang(one.job), heard) or node

    def _instead(self, work: Work, part: Part) -> str:
        """Node that does the part of a node that does not answer; empty: none can."""
        others = [*self._nodes.gang(work.checkpoint.job), *(one.node for one in work.parts)]
        return self._other(work.checkpoint, part.node, others, self._nodes.heard() - part.unanswered)

    @staticmethod
    def _other(one: WrittenCheckpoint, node: str, others: Sequence[str], heard: Set[str]) -> str:
        """Node that does the part instead; none if only the writer may see the place. Parts of several nodes come to
        different ones.
        """
        able = [other for other in dict.fromkeys(others) if other in heard and other != node]
        if one.tier not in {Tier.SHARED, Tier.OBJECT} or not able:
            return ""
        return able[sum(node.encode()) % len(able)]

    def _order(self) -> Iterable[Work]:
        return self._works.values()

    def _begin(
        self, one: WrittenCheckpoint, whole: bool = True, files_at_once: int | None = None, on_node: str = ""
    ) -> None:
        """`on_node` does it for all nodes, where it sees all files."""
        by_node: dict[str, list[FileToRead]] = {}
        written_by: dict[str, set[str]] = {}
        for shard in self._store.shards(one.row):
            if shard.file:
                file = FileToRead(shard.file, shard.size_bytes, shard.checksum, shard.at)
                node = on_node or self._place(one, shard.node)
                by_node.setdefault(node, []).append(file)
                written_by.setdefault(node, set()).add(shard.node)
        parts = []
        for node, files in by_node.items():
            for some in _in_parts(files, files_at_once):
                self._last_number += 1
                parts.append(Part(node, self._make_task(one, some, whole), written_by[node]))
        self._works[one.row] = Work(one, parts, self._clock.monotonic(), whole)

    def _give_up(self, work: Work, why: str) -> None:
        self._forget(work)
        self._leave(work.checkpoint, why)

    def _leave(self, one: WrittenCheckpoint, why: str) -> None:
        """Until the next start of the control plane."""
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.pop(next(iter(self._given_up)))
        self._given_up[one.row] = None
        self._note_given_up(one, why)

    def _forget(self, work: Work) -> None:
        self._works.pop(work.checkpoint.row, None)
        for part in work.parts:
            if self._offered.get(part.node) is part:
                del self._offered[part.node]

    def _offer(self, nodes_at_once: int) -> None:
        """Users take turns, on each node and in the fleet: none has all places, whatever their files seem to be."""
        of_user_max = max(1, nodes_at_once - max(1, nodes_at_once // LEFT_TO_OTHERS))
        held = Counter(part.task.user_id for part in self._offered.values())
        waiting: dict[int, deque[Part]] = {}
        for work in self._order():
            of_user = waiting.setdefault(work.checkpoint.user_id, deque())
            of_user.extend(part for part in work.parts if part.task.number not in work.done)
        turns = sorted(waiting, key=lambda user: (held[user], self._turns.get(user, 0)))
        while turns and len(self._offered) < nodes_at_once:
            user = turns.pop(0)
            part = self._next(waiting[user]) if held[user] < of_user_max else None
            if part is not None:
                part.offered_at = self._clock.monotonic()
                self._offered[part.node] = part
                held[user] += 1
                self._turns[user] = max(self._turns.values(), default=0) + 1
                turns.append(user)
        self._turns = {user: turn for user, turn in self._turns.items() if user in waiting}

    def _next(self, waiting: deque[Part]) -> Part | None:
        """The first one whose node has no task."""
        while waiting:
            part = waiting.popleft()
            if part.node not in self._offered:
                return part
        return None

    def _drop_unanswered(self) -> None:
        now = self._clock.monotonic()
        for part in list(self._offered.values()):
            seconds_max = ANSWER_SECONDS_MAX if part.taken else OFFERED_SECONDS_MAX
            if part.offered_at is not None and now - part.offered_at > seconds_max:
                work = self._work_of(part)
                self._offered.pop(part.node, None)
                part.unanswered.add(part.node)
                other = self._instead(work, part) if work is not None else ""
                if other:
                    part.node, part.offered_at, part.taken = other, None, False
                elif work is not None:
                    self._give_up(work, f"{part.node} does not answer")

    def _work_of(self, part: Part) -> Work | None:
        return next((one for one in self._works.values() if part in one.parts), None)


class TaskKind(Protocol):
    """Tasks for agents that follow from something else than a checkpoint, too."""

    def task(self, node: str) -> ReadBack | None: ...

    def is_under_way(self, node: str) -> bool: ...

    def take(self, node: str, result: ReadBackResult) -> bool: ...


class AgentTasks:
    """What an agent is given of several kinds of work: the one that it has begun, else of the first kind that has a
    task for its node.
    """

    def __init__(self, kinds: Sequence[TaskKind]) -> None:
        self._kinds = kinds

    def task(self, node: str) -> ReadBack | None:
        for kind in self._kinds:
            if kind.is_under_way(node):
                return kind.task(node)
        return next((task for kind in self._kinds if (task := kind.task(node)) is not None), None)

    def take(self, node: str, result: ReadBackResult) -> None:
        """May raise StoreError: then it comes again."""
        for kind in self._kinds:
            if kind.take(node, result):
                return


def _in_parts(files: list[FileToRead], at_once: int | None) -> Iterable[list[FileToRead]]:
    if at_once is None:
        return [files]
    return [files[first : first + at_once] for first in range(0, len(files), at_once)]
