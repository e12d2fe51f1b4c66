"""Orders to test GPUs between steps, on their way to the ranks of a gang: the newest of each.

Nothing is agreed, unlike with orders to save: a rank that an order does not reach in time costs a comparison. All of it
is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from understudy_controlplane.fleet.job import Attempt
from understudy_wire.ranks import ComputeTestOrder, RankWindow


class ComputeTestOrders:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[int, ComputeTestOrder] = {}

    def order(self, order: ComputeTestOrder) -> None:
        with self._lock:
            self._orders[order.job_id] = order

    def step_of(self, job_id: int, attempt: Attempt) -> int | None:
        """After which the gang is to test; None: there was no order in this attempt."""
        with self._lock:
            order = self._orders.get(job_id)
        return order.step if order is not None and (order.restart_count, order.launch) == attempt else None

    def answer_to(self, windows: Sequence[RankWindow]) -> list[ComputeTestOrder]:
        """What is passed on to these ranks: again with each report, until they have ended the step."""
        found: dict[int, ComputeTestOrder] = {}
        with self._lock:
            for window in windows if self._orders else ():
                order = self._orders.get(window.job_id)
                if order is not None and _is_for(order, window):
                    found[window.job_id] = order
        return list(found.values())

    def expect(self, running: Mapping[int, int]) -> None:
        """`running`: job id → restart count, of the jobs that run now."""
        with self._lock:
            self._orders = {
                job_id: order for job_id, order in self._orders.items() if running.get(job_id) == order.restart_count
            }


def _is_for(order: ComputeTestOrder, window: RankWindow) -> bool:
    of_window = (window.restart_count, window.launch, window.user_id)
    ended = window.first_step + len(window.self_seconds) - 1
    return (order.restart_count, order.launch, order.user_id) == of_window and ended < order.step
