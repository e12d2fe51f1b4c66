"""Tasks for agents on files of users: each node has one at a time, of the first kind that has something for it to do.

A task comes to an agent with the answer to its report, and its result with the agent's next ones. One thread (`look`)
finds, offers and ends tasks: reports wait for none of that. What is under way is in memory only, and begins again after
a restart of the control plane.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.store.database import StoreError
from understudy_wire.files import FileResult, FileTask

log = structlog.get_logger()

LOOK_SECONDS = 5.0
ANSWER_SECONDS_MAX = 2.5 * 3600.0
"""An agent ends a task by itself after two hours."""
OFFERED_SECONDS_MAX = 300.0
"""A node that does not take its part within this is gone."""
LEFT_TO_OTHERS = 4
"""A quarter of the places is for users who have none."""

task_numbers = itertools.count(secrets.randbits(48))
"""An agent may still have a result from before a restart."""


@dataclass(slots=True, eq=False)
class Part:
    """A task of one node."""

    node: str
    task: FileTask
    offered_at: float | None = None  # by the monotonic clock
    taken: bool = False
    result: FileResult | None = None

    def move(self, node: str) -> None:
        """Another node is to do it."""
        self.node, self.offered_at, self.taken = node, None, False


AnyPart = TypeVar("AnyPart", bound=Part)


class FileWork(ABC, Generic[AnyPart]):
    """One kind of tasks: what is to be done, and what follows from results."""

    FINDS_EVERY: ClassVar[int]
    """Finds work at every so many looks."""

    @abstractmethod
    def find(self) -> None:
        """Finds what is to be done. May raise StoreError."""

    @abstractmethod
    def waiting(self) -> Iterable[AnyPart]:
        """Parts that are not done, first ones first. Any other part is withdrawn from its node."""

    @abstractmethod
    def nodes_at_once(self) -> int: ...

    @abstractmethod
    def note(self, part: AnyPart, result: FileResult) -> None:
        """May raise StoreError: then it comes again, until it is late."""

    @abstractmethod
    def note_unanswered(self, part: AnyPart) -> None: ...

    def is_held_back(self, part: AnyPart) -> bool:  # noqa: ARG002 - kinds that hold parts back need it
        """Its node must not do it now. Called for each report of the node."""
        return False


class FileTasks:
    def __init__(self, kinds: Sequence[FileWork[Any]], clock: Clock) -> None:
        self._kinds, self._clock = kinds, clock
        self._offered: dict[str, tuple[FileWork[Any], Part]] = {}  # by node
        self._turns: dict[FileWork[Any], dict[int, int]] = {kind: {} for kind in kinds}  # user → the last one
        self._stopped = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._stopped.wait(LOOK_SECONDS):
                return
            self.look([kind for kind in self._kinds if number % kind.FINDS_EVERY == 0])

    def stop(self) -> None:
        self._stopped.set()

    def task(self, node: str) -> FileTask | None:
        """Task that the answer to this node's report carries."""
        kind, part = self._offered.get(node, (None, None))
        if kind is None or part is None or part.result is not None or kind.is_held_back(part):
            return None
        part.taken = True
        return part.task

    def take(self, node: str, result: FileResult) -> None:
        """Keeps what became of a task for the next look."""
        _, part = self._offered.get(node, (None, None))
        if part is not None and part.task.number == result.number:
            part.result = result

    def look(self, finding: Sequence[FileWork[Any]] | None = None) -> None:
        """Ends what has a result or is late, has these kinds, or all, find what is to be done, and offers it."""
        for node, (kind, part) in list(self._offered.items()):
            with _logged(kind):
                self._end(node, kind, part)
        for kind in self._kinds:
            with _logged(kind):
                if finding is None or kind in finding:
                    kind.find()
                self._offer(kind, list(kind.waiting()))

    def _end(self, node: str, kind: FileWork[Any], part: Part) -> None:
        """A result that cannot be noted is none: its node is free for other tasks."""
        if not self._is_late(part):
            if part.result is None:
                return
            try:
                kind.note(part, part.result)
            except StoreError:
                raise
            except Exception as error:
                log.exception("file_task_not_noted", node=node, kind=type(kind).__name__, error=type(error).__name__)
            else:
                del self._offered[node]
                return
        del self._offered[node]
        part.result = None
        kind.note_unanswered(part)

    def _is_late(self, part: Part) -> bool:
        seconds_max = ANSWER_SECONDS_MAX if part.taken else OFFERED_SECONDS_MAX
        return part.offered_at is not None and self._clock.monotonic() - part.offered_at > seconds_max

    def _offer(self, kind: FileWork[Any], parts: Sequence[Part]) -> None:
        """Users take turns, on each node and in the fleet: none has all places, whatever their files seem to be."""
        self._withdraw(kind, set(parts))
        nodes_at_once, turns = kind.nodes_at_once(), self._turns[kind]
        of_user_max = max(1, nodes_at_once - max(1, nodes_at_once // LEFT_TO_OTHERS))
        held = Counter(part.task.user_id for of, part in self._offered.values() if of is kind)
        waiting: dict[int, deque[Part]] = {}
        for part in parts:
            waiting.setdefault(part.task.user_id, deque()).append(part)
        users = sorted(waiting, key=lambda user: (held[user], turns.get(user, 0)))
        while users and held.total() < nodes_at_once:
            user = users.pop(0)
            next_one = self._next(waiting[user]) if held[user] < of_user_max else None
            if next_one is not None:
                next_one.offered_at = self._clock.monotonic()
                self._offered[next_one.node] = kind, next_one
                held[user] += 1
                turns[user] = max(turns.values(), default=0) + 1
                users.append(user)
        self._turns[kind] = {user: turn for user, turn in turns.items() if user in waiting}

    def _withdraw(self, kind: FileWork[Any], wanted: set[Part]) -> None:
        for node, (of, part) in list(self._offered.items()):
            if of is kind and part not in wanted:
                del self._offered[node]

    def _next(self, waiting: deque[Part]) -> Part | None:
        """The first one whose node has no task."""
        while waiting:
            part = waiting.popleft()
            if part.node not in self._offered:
                return part
        return None


@contextlib.contextmanager
def _logged(kind: FileWork[Any]) -> Iterator[None]:
    """A kind that fails holds up no other."""
    try:
        yield
    except Exception as error:
        log.exception("file_tasks_not_looked_up", kind=type(kind).__name__, error=type(error).__name__)
