"""Facts that wait for the control plane's acknowledgement. Pure, single-threaded.

In lanes: what the hardware and root's hooks report goes first and has room of its own; each user has a lane. A user who
reports without end neither pushes out nor delays what others report.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from understudy_wire.facts import Anomaly, CheckpointShard, Fact, FirstStep, HardwareEvent, JobRefused, KernelEvent

FACTS_OF_NODE_MAX = 10_000
FACTS_OF_USERS_MAX = 10_000
"""Facts of all users together."""

Settle = Callable[[str | None], None]
"""Called once for a fact: with None when the control plane has it, or with the error it was refused with."""

NodeFact = KernelEvent | HardwareEvent | JobRefused

_NODE = -1
"""The lane of the node itself; those of users have their ids."""

# Dropped in this order when there is no room: starts and ends decide recoveries, first steps only measure them.
_EXPENDABLE: tuple[type, ...] = (FirstStep, Anomaly, CheckpointShard, object)


class _Lane(dict[Fact, list[Settle]]):
    """Facts in their order, with what is called for each. It also knows them by kind: to drop one takes as long for ten
    thousand as for one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_kind: tuple[dict[Fact, None], ...] = tuple({} for _ in _EXPENDABLE)

    def add(self, fact: Fact) -> None:
        self[fact] = []
        self._of_kind(fact)[fact] = None

    def take(self, fact: Fact) -> list[Settle]:
        del self._of_kind(fact)[fact]
        return self.pop(fact)

    def most_expendable(self) -> Fact:
        return next(next(iter(kind)) for kind in self._by_kind if kind)

    def _of_kind(self, fact: Fact) -> dict[Fact, None]:
        return next(held for kind, held in zip(_EXPENDABLE, self._by_kind, strict=True) if isinstance(fact, kind))


class FactQueue:
    """A fact that is put again while it is held is held once; all its callbacks are called."""

    def __init__(self, of_node_max: int = FACTS_OF_NODE_MAX, of_users_max: int = FACTS_OF_USERS_MAX) -> None:
        self._of_node_max = of_node_max
        self._of_users_max = of_users_max
        self._lanes: dict[int, _Lane] = {_NODE: _Lane()}
        self._of_users = 0
        self.dropped = 0
        self.refused = 0
        self._last_refusal = ""

    def __len__(self) -> int:
        return len(self._lanes[_NODE]) + self._of_users

    def put(self, fact: Fact, settle: Settle | None = None) -> None:
        number = _lane_of(fact)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        if fact not in lane:
            lane.add(fact)
            self._of_users += number != _NODE
            self._make_room()
        if settle is not None and fact in lane:
            lane[fact].append(settle)

    def oldest(self, count: int) -> list[Fact]:
        """Facts of the node come first, unless one was set back; then one of each user in turn."""
        return list(itertools.islice(self._in_turn(), count))

    def acknowledge(self, facts: Iterable[Fact]) -> None:
        self._lanes = {_NODE: self._lanes[_NODE], **self._lanes}
        for fact in facts:
            self._settle(fact, None)

    def refuse(self, fact: Fact, error: str) -> None:
        """The control plane refused this fact for good."""
        self.refused += 1
        self._last_refusal = error
        self._settle(fact, error)

    def set_back(self, fact: Fact) -> None:
        """The control plane could not take this fact now: the others of its lane go first, and the other lanes until
        it has taken one of them.
        """
        number = _lane_of(fact)
        lane = self._lanes.get(number)
        if lane is not None and fact in lane:
            lane[fact] = lane.pop(fact)
            self._lanes[number] = self._lanes.pop(number)

    def problems(self) -> list[str]:
        dropped = f"{self.dropped} facts were dropped before they were sent: too many were waiting"
        refused = f"{self.refused} facts were refused by the control plane, the last: {self._last_refusal}"
        return [*([dropped] if self.dropped else []), *([refused] if self.refused else [])]

    def _in_turn(self) -> Iterator[Fact]:
        lanes = list(self._lanes)
        if lanes[0] == _NODE:
            yield from self._lanes[lanes.pop(0)]
        for one_of_each in itertools.zip_longest(*(self._lanes[number] for number in lanes)):
            yield from (fact for fact in one_of_each if fact is not None)

    def _settle(self, fact: Fact, error: str | None) -> None:
        for settle in self._remove(_lane_of(fact), fact):
            settle(error)

    def _remove(self, number: int, fact: Fact) -> list[Settle]:
        lane = self._lanes.get(number)
        if lane is None or fact not in lane:
            return []
        settles = lane.take(fact)
        self._of_users -= number != _NODE
        if not lane and number != _NODE:
            del self._lanes[number]
        return settles

    def _make_room(self) -> None:
        """The callbacks of the dropped fact are not called, so its sender sends it again."""
        if len(self._lanes[_NODE]) > self._of_node_max:
            self._drop(_NODE)
        if self._of_users > self._of_users_max:
            users = (number for number in self._lanes if number != _NODE)
            self._drop(max(users, key=lambda number: len(self._lanes[number])))

    def _drop(self, number: int) -> None:
        self._remove(number, self._lanes[number].most_expendable())
        self.dropped += 1


def _lane_of(fact: Fact) -> int:
    return _NODE if isinstance(fact, NodeFact) else fact.user_id
