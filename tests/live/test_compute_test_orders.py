"""Orders to test GPUs between steps, on their way to the ranks of a gang."""

from __future__ import annotations

from msgspec.structs import replace

from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.live.compute_test_orders import ComputeTestOrders
from understudy_wire.ranks import ComputeTestOrder, RankWindow

ORDER = ComputeTestOrder(7, 1, 2, 1000, step=50)


def window(ended: int = 40) -> RankWindow:
    steps = [1.0] * 3
    return RankWindow(7, 1, 0, 8, user_id=1000, first_step=ended - 2, self_seconds=steps, launch=2)


def orders() -> ComputeTestOrders:
    live = ComputeTestOrders()
    live.order(ORDER)
    return live


def test_ranks_get_it_until_they_have_ended_the_step() -> None:
    live = orders()
    assert live.answer_to([window(40), window(41)]) == [ORDER]
    assert live.answer_to([window(49)]) == [ORDER]
    assert live.answer_to([window(50)]) == []
    assert live.answer_to([window(50), window(49)]) == [ORDER], "one rank is behind"


def test_others_get_none() -> None:
    live = orders()
    for other in ({"job_id": 8}, {"restart_count": 0}, {"launch": 1}, {"user_id": 1001}):
        assert live.answer_to([replace(window(), **other)]) == []


def test_it_ends_with_its_attempt() -> None:
    live = orders()
    assert live.step_of(7, Attempt(1, 2)) == 50
    assert live.step_of(7, Attempt(1, 3)) is None, "the gang was launched again"
    live.expect({7: 1})
    assert live.answer_to([window()]) == [ORDER]
    live.expect({7: 2})
    assert live.answer_to([window()]) == []
