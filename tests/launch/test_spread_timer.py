"""Turns of many members."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from understudy_launcher.spread_timer import PARTS, Turns


def test_each_has_its_turn_once_in_an_interval_and_few_at_a_time() -> None:
    turns = Turns[int](3.0, 100.0)
    for member in range(2048):
        turns.add(member)
    found: Counter[int] = Counter()
    most = 0
    for pass_ in range(1, 301):
        due = list(turns.due(100.005 + pass_ * 0.01))
        most = max(most, len(due))
        found.update(due)
    assert set(found) == set(range(2048))
    assert set(found.values()) == {1}
    assert most <= 2048 // PARTS + 1


def test_after_a_long_pause_each_has_one_turn() -> None:
    turns = Turns[str](2.0, 0.0)
    for member in "abc":
        turns.add(member)
    assert sorted(turns.due(60.0)) == ["a", "b", "c"]
    assert list(turns.due(60.01)) == []


def test_a_member_that_has_left_has_no_turn() -> None:
    turns = Turns[str](2.0, 0.0)
    turns.add("a")
    turns.remove("a")
    turns.remove("never there")
    assert list(turns.due(5.0)) == []


def test_a_member_that_comes_again_has_one_turn_and_none_once_it_has_left() -> None:
    """A seat whose step gets one signal after another does."""
    turns = Turns[str](2.0, 0.0)
    for _ in range(10):
        turns.add("a")
    assert list(turns.due(5.0)) == ["a"]
    turns.remove("a")
    assert list(turns.due(10.0)) == []


@given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=200))
def test_no_member_waits_longer_than_an_interval_and_a_pass(passes: list[float]) -> None:
    turns = Turns[int](2.0, 0.0)
    for member in range(120):
        turns.add(member)
    now, last = 0.0, dict.fromkeys(range(120), 0.0)
    for seconds in passes:
        now += seconds
        for member in turns.due(now):
            last[member] = now
        assert all(now - at <= 2.0 + max(passes) + 1e-6 for at in last.values())
