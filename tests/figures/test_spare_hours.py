"""Hours for which spares waited, and for whom."""

from __future__ import annotations

from understudy_controlplane.figures.spare_hours import Wait, most_taken, waits
from understudy_controlplane.fleet.history import PoolChange


def joins(at: float, node: str) -> PoolChange:
    return PoolChange(at, node, True)


def taken(at: float, node: str, job: int | None = 7) -> PoolChange:
    return PoolChange(at, node, False, job)


def test_a_spare_waits_from_when_it_joined_until_a_gang_took_it() -> None:
    assert waits([taken(50, "n1"), joins(10, "n1")], [], 0, 100) == [Wait("n1", 10, 50, 7)]


def test_a_spare_of_before_waits_from_the_beginning_and_one_that_is_held_to_the_end() -> None:
    found = waits([taken(50, "n1"), joins(60, "n2")], ["n2", "n3"], 0, 100)
    assert found == [Wait("n1", 0, 50, 7), Wait("n2", 60, 100, None), Wait("n3", 0, 100, None)]


def test_a_spare_that_came_back_waits_twice_and_one_that_an_operator_removed_served_no_one() -> None:
    found = waits([joins(10, "n1"), taken(20, "n1"), joins(30, "n1"), taken(40, "n1", None)], [], 0, 100)
    assert found == [Wait("n1", 10, 20, 7), Wait("n1", 30, 40, None)]


def test_what_is_not_known_is_left_out() -> None:
    assert waits([joins(10, "n1")], [], 0, 100) == []
    assert waits([taken(20, "n1", None)], [], 0, 100) == []
    assert waits([joins(110, "n1")], [], 0, 100) == []


def test_the_most_that_gangs_took_within_a_time() -> None:
    changes = [taken(at, f"n{at}") for at in (0, 5, 12, 14, 40)] + [taken(13, "x", None), joins(13, "y")]
    assert [most_taken(changes, seconds) for seconds in (1, 8, 10, 100)] == [1, 2, 3, 5]
    assert most_taken([], 10) == 0
