"""Orders to save on their way to all ranks of a gang, and what each rank reports of them.

An order is proposed, and valid once every rank has answered that it can follow; docs/adr/0039-when-a-gang-saves.md. All
of it is in memory: after a start, the orders are what the ranks report.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.saving import SavingGang, SettledSave, WantedSave
from understudy_wire.ranks import OrderState, RankWindow, SaveOrder, SavesFollowed

MARGIN_SECONDS = 8.0
"""Time for an order to reach all ranks, for their answers and for its confirmation: over five intervals between
reports.
"""

MARGIN_SECONDS_MAX = 300.0
MARGIN_FACTOR = 3.0
"""Multiple of the time that the last order took."""

ANSWERED_SHARE = 0.6
"""Share of the margin in which all ranks have to answer. In the rest they learn that it is withdrawn."""

PAUSE_SECONDS = 5.0
"""After an order that was withdrawn."""

PACE_SECONDS = 0.5
PACE_KEPT = 64

IS_SETTLED = (OrderState.FOLLOWED, OrderState.LATE, OrderState.WITHDRAWN)
NOT_FOLLOWED = (OrderState.LATE, OrderState.WITHDRAWN)


@dataclass(slots=True)
class _Gang:
    attempt: Attempt
    world_size: int
    user_id: int
    asked: int = -1
    asked_at: float = 0.0
    own_every: int = 0
    ordered_every: int = 0
    ordered_memory_every: int = 0
    pace: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=PACE_KEPT))
    ranks: dict[int, SavesFollowed] = field(default_factory=dict)
    """Rank → what it reported last."""
    number: int = 0  # the highest that any rank or this process knows
    order: SaveOrder | None = None
    wanted: WantedSave | None = None
    proposed_at: float = 0.0
    made_here: bool = False
    ready: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    saves_at: float = 0.0
    margin_seconds: float = MARGIN_SECONDS
    not_before: float = 0.0
    not_followed: bool = False
    """A rank did not follow an order that others do, and all have followed none since."""

    @property
    def settled(self) -> bool:
        return self.order is None or len(self.over) == self.world_size

    @property
    def split(self) -> bool:
        """Also where an earlier process of the control plane made the order that some ranks follow: they report it."""
        if self.not_followed or not self.settled or len(self.ranks) < self.world_size:
            return self.not_followed
        followed = {one.in_force if one.number else 0 for one in self.ranks.values()}
        return None not in followed and len(followed) > 1


class SaveOrders:
    """Safe from any thread. Times are by the control plane's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gangs: dict[int, _Gang] = {}
        self._settled: list[SettledSave] = []

    def receive(self, windows: Sequence[RankWindow], now: float) -> None:
        """Takes the believed windows of a report."""
        with self._lock:
            for window in windows:
                if window.saves is not None:
                    self._note(window, window.saves, now)

    def answer_to(self, windows: Sequence[RankWindow]) -> list[SaveOrder]:
        """What these ranks do not know yet."""
        found: dict[int, SaveOrder] = {}
        with self._lock:
            for window in windows:
                gang = self._gangs.get(window.job_id)
                if window.saves is None or gang is None or gang.order is None or gang.attempt != _attempt(window):
                    continue
                if gang.user_id == window.user_id and _news(gang.order, window.saves):
                    found[window.job_id] = gang.order
        return list(found.values())

    def gangs(self) -> dict[int, SavingGang]:
        """Gangs by job id."""
        with self._lock:
            return {job_id: _shown(gang) for job_id, gang in self._gangs.items()}

    def unsettled(self) -> frozenset[int]:
        """Jobs with an order that a rank may not know the end of."""
        with self._lock:
            return frozenset(job_id for job_id, gang in self._gangs.items() if not gang.settled)

    def propose(self, wanted: WantedSave, now: float) -> bool:
        """Returns whether the gang can be asked: it may have gone on since it was looked at."""
        job_id = wanted.job.job_id
        with self._lock:
            gang = self._gangs.get(job_id)
            if gang is None or not gang.settled or gang.asked >= wanted.step:
                return False
            gang.number += 1
            gang.order = SaveOrder(
                job_id=job_id,
                restart_count=gang.attempt.restart_count,
                launch=gang.attempt.launch,
                user_id=gang.user_id,
                number=gang.number,
                step=wanted.step,
                state=OrderState.PROPOSED,
                every=wanted.every,
                memory_every=wanted.memory_every,
            )
            gang.wanted, gang.proposed_at, gang.made_here = wanted, now, True
            gang.ready, gang.over = set(), set()
            return True

    def settle(self, now: float) -> list[SettledSave]:
        """Withdraws what not all ranks can follow. Returns what became of orders since the last call."""
        with self._lock:
            for job_id, gang in self._gangs.items():
                why = _objection(gang, now)
                if why:
                    self._withdraw(job_id, gang, why, now)
            settled, self._settled = self._settled, []
            return settled

    def expect(self, running: Mapping[int, int]) -> None:
        """`running`: job id → restart count, of the jobs that run now."""
        with self._lock:
            self._gangs = {
                job_id: gang
                for job_id, gang in self._gangs.items()
                if running.get(job_id) == gang.attempt.restart_count
            }

    def forget(self) -> None:
        with self._lock:
            self._gangs.clear()

    def _note(self, window: RankWindow, saves: SavesFollowed, now: float) -> None:
        gang = self._gangs.get(window.job_id)
        attempt = _attempt(window)
        if gang is None or gang.attempt < attempt:
            gang = self._gangs[window.job_id] = _Gang(attempt, window.world_size, window.user_id)
        if gang.attempt != attempt or gang.user_id != window.user_id or gang.world_size != window.world_size:
            return
        before = gang.ranks.get(window.rank)
        if before is not None and saves.asked < before.asked:  # an epoch, a second training, a resume
            gang.asked = -1
            gang.pace.clear()
        if saves.asked > gang.asked:
            gang.asked, gang.asked_at = saves.asked, now
            if not gang.pace or now - gang.pace[-1][0] >= PACE_SECONDS:
                gang.pace.append((now, saves.asked))
        gang.own_every = saves.own_every
        if saves.state in IS_SETTLED:
            gang.ordered_every, gang.ordered_memory_every = saves.every, saves.memory_every
        gang.ranks[window.rank] = saves
        self._adopt(window, gang, saves, now)
        order = gang.order
        if order is None:
            return
        knows = saves.number == order.number
        gang.not_followed |= knows and order.state is OrderState.VALID and saves.state in NOT_FOLLOWED
        # Another control plane may have given the same number; an older agent on the way leaves `memory_every` out.
        agrees = (saves.step, saves.memory_every) == (order.step, order.memory_every)
        _set(gang.ready, window.rank, knows and agrees and saves.state is OrderState.PROPOSED)
        _set(gang.over, window.rank, order.state is not OrderState.PROPOSED and knows and saves.state in IS_SETTLED)
        if order.state is OrderState.PROPOSED and len(gang.ready) == gang.world_size:
            self._make_valid(window.job_id, gang, now)

    def _adopt(self, window: RankWindow, gang: _Gang, saves: SavesFollowed, now: float) -> None:
        """An order of an earlier process of the control plane, as a rank knows it."""
        known = saves.state in (OrderState.PROPOSED, OrderState.VALID, OrderState.FOLLOWED)
        if saves.number > gang.number:
            gang.number = saves.number
            gang.order = None
            if known and saves.step:
                gang.order = SaveOrder(
                    window.job_id,
                    window.restart_count,
                    window.launch,
                    window.user_id,
                    saves.number,
                    saves.step,
                    OrderState.PROPOSED,
                    saves.every,
                    saves.memory_every,
                )
                gang.wanted, gang.proposed_at, gang.made_here = None, now, False
                gang.ready, gang.over = set(), set()
        order = gang.order
        is_valid = known and saves.state is not OrderState.PROPOSED
        if order is not None and saves.number == order.number and is_valid and not gang.made_here:
            gang.order = msgspec.structs.replace(order, state=OrderState.VALID)

    def _make_valid(self, job_id: int, gang: _Gang, now: float) -> None:
        assert gang.order is not None
        gang.order = msgspec.structs.replace(gang.order, state=OrderState.VALID)
        gang.saves_at, gang.not_followed = now, False
        gang.ordered_every, gang.ordered_memory_every = gang.order.every, gang.order.memory_every
        if gang.made_here:
            took = now - gang.proposed_at
            gang.margin_seconds = min(max(MARGIN_SECONDS, took * MARGIN_FACTOR), MARGIN_SECONDS_MAX)
        self._settled.append(SettledSave(job_id, gang.order, gang.wanted))

    def _withdraw(self, job_id: int, gang: _Gang, why: str, now: float) -> None:
        assert gang.order is not None
        gang.order = msgspec.structs.replace(gang.order, state=OrderState.WITHDRAWN)
        gang.over = {rank for rank, one in gang.ranks.items() if _is_over(gang.order, one)}
        gang.margin_seconds = min(2 * gang.margin_seconds, MARGIN_SECONDS_MAX)
        gang.not_before = now + PAUSE_SECONDS
        self._settled.append(SettledSave(job_id, gang.order, gang.wanted, why))


def _objection(gang: _Gang, now: float) -> str:
    """Why the order cannot become valid; empty: it may. What another process proposed may be valid on a rank that has
    not reported yet.
    """
    order = gang.order
    if order is None or order.state is not OrderState.PROPOSED:
        return ""
    heard = {rank for rank, one in gang.ranks.items() if one.number == order.number}
    if not gang.made_here and len(heard) < gang.world_size:
        return ""
    refused = [rank for rank in heard if gang.ranks[rank].state in IS_SETTLED]
    if refused:
        return f"rank {min(refused)} got the order too late"
    others = [rank for rank in heard if gang.ranks[rank].step != order.step]
    if others:
        return f"rank {min(others)} has an order of the control plane before with the same number"
    if now - gang.proposed_at > ANSWERED_SHARE * gang.margin_seconds:
        return f"{gang.world_size - len(gang.ready)} of {gang.world_size} ranks did not answer in time"
    return ""


def _is_over(order: SaveOrder, known: SavesFollowed) -> bool:
    return known.number == order.number and known.state in IS_SETTLED


def _news(order: SaveOrder, saves: SavesFollowed) -> bool:
    """True if the rank does not know the order, or what became of it."""
    if saves.number != order.number:
        return saves.number < order.number
    return order.state is not OrderState.PROPOSED and saves.state is OrderState.PROPOSED


def _set(ranks: set[int], rank: int, belongs: bool) -> None:
    if belongs:
        ranks.add(rank)
    else:
        ranks.discard(rank)


def _attempt(window: RankWindow) -> Attempt:
    return Attempt(window.restart_count, window.launch)


def _shown(gang: _Gang) -> SavingGang:
    (first_at, first), (last_at, last) = (gang.pace[0], gang.pace[-1]) if gang.pace else ((0.0, 0), (0.0, 0))
    return SavingGang(
        gang.attempt,
        gang.world_size,
        len(gang.ranks),
        gang.asked,
        gang.asked_at,
        (last_at - first_at) / (last - first) if last > first else None,
        gang.own_every,
        gang.ordered_every,
        len(gang.ranks) == gang.world_size and all(one.asks_memory for one in gang.ranks.values()),
        max((one.own_memory_every for one in gang.ranks.values()), default=0),
        gang.ordered_memory_every,
        gang.order,
        gang.settled,
        gang.split,
        gang.saves_at,
        gang.margin_seconds,
        gang.not_before,
    )
