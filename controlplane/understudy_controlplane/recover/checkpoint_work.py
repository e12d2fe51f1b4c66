"""Work of agents on files of checkpoints: each node does what its own ranks wrote. Where such a node is gone and the
place is shared, another node of the gang does its part, else one that wrote another part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Checkpoints
from understudy_controlplane.fleet.job import JobKey, WrittenCheckpoint
from understudy_controlplane.recover.file_tasks import FileWork, Part, task_numbers
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_wire.facts import Tier
from understudy_wire.files import AnnouncedFile, FileResult, FileTask

GIVEN_UP_MAX = 1000
HEARD_SECONDS_MAX = 60.0
"""A node whose agent has reported nothing for longer is given nothing, where another can do it."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Who may stand in for a node that is gone."""

    gang: Callable[[JobKey], Sequence[str]] = lambda _: ()  # nodes on which the job runs now
    heard: Callable[[], Set[str]] = frozenset  # nodes whose agents report


@dataclass(slots=True, eq=False)
class CheckpointPart(Part):
    """What one node wrote of a checkpoint, or does in the place of such a node."""

    written_by: Set[str] = frozenset()
    done: bool = False
    unanswered: set[str] = field(default_factory=set)  # nodes that were to do it and did not

    @property
    def stands_in(self) -> bool:
        """Its node did not write all of it, and may not see the place."""
        return self.written_by != {self.node}


@dataclass(slots=True)
class Work:
    checkpoint: WrittenCheckpoint
    parts: list[CheckpointPart]
    begun_at: float  # by the monotonic clock
    is_last: bool = True  # False: the first of two passes over its files
    proven: bool = True


class CheckpointWork(FileWork[CheckpointPart]):
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
        self._works: dict[int, Work] = {}  # by row of the checkpoint
        self._given_up: dict[int, None] = {}  # rows of checkpoints

    def find(self) -> None:
        if not self._find(self._policy(), self._clock.now()):
            self._works.clear()

    def waiting(self) -> Iterable[CheckpointPart]:
        return (part for work in self._order() for part in work.parts if not part.done)

    def note(self, part: CheckpointPart, result: FileResult) -> None:
        work = self._work_of(part)
        if work is not None:
            self._note(work, part, result)

    def note_unanswered(self, part: CheckpointPart) -> None:
        work = self._work_of(part)
        if work is None:
            return
        part.unanswered.add(part.node)
        other = self._instead(work, part)
        if other:
            part.move(other)
        else:
            self._give_up(work, f"{part.node} does not answer")

    def rows(self) -> frozenset[int]:
        """Rows of the checkpoints whose files agents work on."""
        return frozenset(self._works)

    @abstractmethod
    def _find(self, policy: Checkpoints, now: float) -> bool:
        """Adds to `_works` what is to be done. False: this kind of work is switched off."""

    @abstractmethod
    def _make_task(
        self, number: int, one: WrittenCheckpoint, files: list[AnnouncedFile], is_last: bool
    ) -> FileTask: ...

    @abstractmethod
    def _note(self, work: Work, part: CheckpointPart, result: FileResult) -> None: ...

    @abstractmethod
    def _finish(self, work: Work) -> None:
        """All of its parts are done."""

    @abstractmethod
    def _note_given_up(self, one: WrittenCheckpoint, why: str) -> None: ...

    def _place(self, one: WrittenCheckpoint, node: str) -> str:
        """Node that does the part of this node, which wrote it."""
        heard = self._nodes.heard()
        return node if node in heard else self._other(one, node, self._nodes.gang(one.job), heard) or node

    def _instead(self, work: Work, part: CheckpointPart) -> str:
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
        self, one: WrittenCheckpoint, is_last: bool = True, files_at_once: int | None = None, on_node: str = ""
    ) -> None:
        """`on_node` does it for all nodes, where it sees all files."""
        by_node: dict[str, list[AnnouncedFile]] = {}
        written_by: dict[str, set[str]] = {}
        for shard in self._store.shards(one.row):
            if shard.file:
                file = AnnouncedFile(shard.file, shard.size_bytes, shard.checksum, shard.at)
                node = on_node or self._place(one, shard.node)
                by_node.setdefault(node, []).append(file)
                written_by.setdefault(node, set()).add(shard.node)
        parts = [
            CheckpointPart(node, self._make_task(next(task_numbers), one, some, is_last), written_by=written_by[node])
            for node, files in by_node.items()
            for some in _in_parts(files, files_at_once)
        ]
        self._works[one.row] = Work(one, parts, self._clock.monotonic(), is_last)

    def _done(self, work: Work, part: CheckpointPart) -> None:
        if all(one.done for one in work.parts if one is not part):
            self._finish(work)
        part.done = True  # not before: where the store fails, its result comes again

    def _refuse(self, work: Work, part: CheckpointPart, result: FileResult) -> None:
        self._give_up(work, f"{result.why or result.outcome.value} (on {part.node})")

    def _give_up(self, work: Work, why: str) -> None:
        self._forget(work)
        self._leave(work.checkpoint, why)

    def _leave(self, one: WrittenCheckpoint, why: str) -> None:
        """Leaves it until the next start of the control plane."""
        if len(self._given_up) >= GIVEN_UP_MAX:
            self._given_up.pop(next(iter(self._given_up)))
        self._given_up[one.row] = None
        self._note_given_up(one, why)

    def _forget(self, work: Work) -> None:
        self._works.pop(work.checkpoint.row, None)

    def _work_of(self, part: CheckpointPart) -> Work | None:
        return next((one for one in self._works.values() if part in one.parts), None)


def _in_parts(files: list[AnnouncedFile], at_once: int | None) -> Iterable[list[AnnouncedFile]]:
    if at_once is None:
        return [files]
    return [files[first : first + at_once] for first in range(0, len(files), at_once)]
