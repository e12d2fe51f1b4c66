"""Launchers: what each last reported of its gang, and the orders that stand for it.

Written by the route for launchers and by the loop. The loop derives the orders again with every tick, from nodes and
recoveries in the database, so that a restart forgets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from understudy_controlplane.fleet.gang import Earlier, Gang, orders_version
from understudy_wire.launcher import LauncherOrders

WAITING_MAX = 2000
"""A poll above this number is answered at once; its agent asks again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self.news.set)


class Launchers:
    """Safe from any thread; `wait_for_orders` is for the event loop."""

    def __init__(self, gangs: Mapping[int, Gang] | None = None) -> None:
        """`gangs`: by job id, as the database knows them."""
        self._lock = threading.Lock()
        self._gangs: dict[int, Gang] = dict(gangs or {})
        self._orders: dict[int, LauncherOrders] = {}
        self._earlier: dict[tuple[int, int], Earlier] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._stops = False

    def note(self, gang: Gang) -> bool:
        """Returns whether its state is new. A report of an earlier attempt that comes late is ignored. A launcher that
        a batch script starts after another begins with launch 0 again.
        """
        job_id = gang.state.job_id
        with self._lock:
            before = self._gangs.get(job_id)
            if before is not None and before.attempt > gang.attempt and not gang.follows(before):
                return False
            self._gangs[job_id] = gang
            return before is None or before.state != gang.state

    def forget(self) -> None:
        """Forgets, as after a start: what each launcher reported is known, and none has been heard."""
        with self._lock:
            self._gangs = {job_id: replace(gang, heard_at=None) for job_id, gang in self._gangs.items()}

    def gangs(self) -> dict[int, Gang]:
        with self._lock:
            return dict(self._gangs)

    def gang(self, job_id: int) -> Gang | None:
        with self._lock:
            return self._gangs.get(job_id)

    def forget_all_but(self, running: Mapping[int, int]) -> None:
        """`running`: job id → restart count, of the jobs that run now."""
        with self._lock:
            self._gangs = {
                job_id: gang
                for job_id, gang in self._gangs.items()
                if running.get(job_id, -1) <= gang.attempt.restart_count and job_id in running
            }
            self._earlier = {key: earlier for key, earlier in self._earlier.items() if key[0] in running}

    def earlier_allocations(self, job_id: int, restart_count: int) -> Earlier | None:
        with self._lock:
            return self._earlier.get((job_id, restart_count))

    def note_earlier_allocations(self, job_id: int, restart_count: int, earlier: Earlier) -> None:
        with self._lock:
            self._earlier[job_id, restart_count] = earlier

    def replace_orders(self, orders: Mapping[int, LauncherOrders | None]) -> None:
        """These orders stand, by job id, and no others; None: those that stand for the job go on. A launcher whose job
        is not among them gets no answer with orders: it keeps the ones it has.
        """
        with self._lock:
            new = {job_id: self._orders.get(job_id) if one is None else one for job_id, one in orders.items()}
            new_orders = {job_id: one for job_id, one in new.items() if one is not None}
            changed = [job_id for job_id, one in new_orders.items() if self._orders.get(job_id) != one]
            self._orders = new_orders
            waiters = [self._waiters[job_id] for job_id in changed if job_id in self._waiters]
        for waiter in waiters:
            waiter.wake()

    def add_orders(self, job_id: int, orders: LauncherOrders) -> None:
        """Adds to the standing orders at once: the next `replace_orders` contains them as well."""
        with self._lock:
            before = self._orders.get(job_id, LauncherOrders())
            self._orders[job_id] = LauncherOrders(
                {**before.bad, **orders.bad},
                orders.restart or before.restart,
                {**before.places, **orders.places},
                orders.layout or before.layout,
                orders.may_shrink or before.may_shrink,
            )
            waiter = self._waiters.get(job_id)
        if waiter is not None:
            waiter.wake()

    def orders(self, job_id: int) -> LauncherOrders | None:
        with self._lock:
            return self._orders.get(job_id)

    def end_polls(self) -> None:
        """The control plane stops: launchers get their answers now, and ask its successor."""
        with self._lock:
            self._stops = True
            waiters = list(self._waiters.values())
        for waiter in waiters:
            waiter.wake()

    async def wait_for_orders(self, job_id: int, known: str, seconds: float) -> LauncherOrders | None:
        """The orders, once their version is not the `known` one. None: there are none, or not within this time."""
        orders = self._orders_after(job_id, known)
        if orders is not None:
            return orders
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._stops or len(self._waiters) >= WAITING_MAX:
                return None
            before = self._waiters.pop(job_id, None)
            self._waiters[job_id] = waiter
        if before is not None:
            before.wake()  # one launcher, one poll
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiter.news.wait()
        finally:
            with self._lock:
                if self._waiters.get(job_id) is waiter:
                    del self._waiters[job_id]
        return self._orders_after(job_id, known)

    def _orders_after(self, job_id: int, known: str) -> LauncherOrders | None:
        orders = self.orders(job_id)
        return orders if orders is not None and orders_version(orders) != known else None
