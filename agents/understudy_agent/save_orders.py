"""Orders to save of the gangs that have ranks on this node: the newest of each attempt."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_agent.rank_messages import Hello
from understudy_wire.ranks import RANKS_PER_NODE_MAX, ComputeTestOrder, HangQuestion, JobNote, OrderState, SaveOrder


class SaveOrders:
    def __init__(self) -> None:
        self._newest: dict[tuple[int, int, int, int], SaveOrder] = {}
        """Job, restart count, launch and user → the newest order."""

    def keep(self, order: SaveOrder) -> None:
        key = (order.job_id, order.restart_count, order.launch, order.user_id)
        self._newest.pop(key, None)
        if len(self._newest) >= RANKS_PER_NODE_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[key] = order

    def valid_for(self, hello: Hello, user_id: int) -> Iterator[SaveOrder]:
        """The order for a process that starts while the others of its gang follow one."""
        order = self._newest.get((hello.job_id, hello.restart_count, hello.launch, user_id))
        if order is not None and order.state is OrderState.VALID:
            yield order


ForRanks = SaveOrder | ComputeTestOrder | JobNote | HangQuestion
"""What the control plane sends to ranks."""


def is_for(order: ForRanks, hello: Hello, user_id: int) -> bool:
    """False also where the hook does not know such a message."""
    match order:
        case SaveOrder():
            takes = hello.takes_orders
        case ComputeTestOrder():
            takes = hello.takes_tests
        case JobNote():
            takes = hello.takes_notes and hello.rank == 0
        case HangQuestion():
            takes = hello.takes_questions
    attempt = (hello.job_id, hello.restart_count, hello.launch)
    return takes and (order.job_id, order.restart_count, order.launch) == attempt and order.user_id == user_id
