"""Facts that wait for the control plane's acknowledgement, in order. Pure, single-threaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from understudy_agent.wire import CheckpointShard, Fact, FirstStep, RankStarted

FACTS_HELD_MAX = 10_000

Settle = Callable[[str | None], None]
"""Called once for a fact: with None when the control plane has it, or with the error it was refused with."""

# Dropped first when the queue is full: kernel events and shards decide recoveries, these only measure them.
_EXPENDABLE: tuple[type, ...] = (RankStarted, FirstStep)


class FactQueue:
    """A fact that is put again while it is held is held once; all its callbacks are called."""

    def __init__(self, held_max: int = FACTS_HELD_MAX) -> None:
        self._held_max = held_max
        self._held: dict[Fact, list[Settle]] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, fact: Fact, settle: Settle | None = None) -> None:
        if fact not in self._held and len(self._held) >= self._held_max:
            self._make_room()
        waiting = self._held.setdefault(fact, [])
        if settle is not None:
            waiting.append(settle)

    def oldest(self, count: int) -> list[Fact]:
        return [fact for fact, _ in zip(self._held, range(count), strict=False)]

    def acknowledge(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self._settle(fact, None)

    def refuse(self, fact: Fact, error: str) -> None:
        """The control plane refused this fact for good."""
        self._settle(fact, error)

    def problems(self) -> list[str]:
        if not self.dropped:
            return []
        return [f"{self.dropped} facts were dropped before they were sent: more than {self._held_max} were waiting"]

    def _settle(self, fact: Fact, error: str | None) -> None:
        for settle in self._held.pop(fact, []):
            settle(error)

    def _make_room(self) -> None:
        """The callbacks of the dropped fact are not called, so its sender sends it again."""
        kinds: tuple[type, ...]
        for kinds in (_EXPENDABLE, (CheckpointShard,), (object,)):
            victim = next((fact for fact in self._held if isinstance(fact, kinds)), None)
            if victim is not None:
                del self._held[victim]
                self.dropped += 1
                return
