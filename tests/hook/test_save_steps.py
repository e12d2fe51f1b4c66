"""When a gang saves: all ranks before the same steps, whatever comes late."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.save_steps import SaveSteps


def order(number: int, step: int, state: str, every: int = 0, memory_every: int = 0) -> dict[str, Any]:
    return {"number": number, "step": step, "state": state, "every": every, "memory_every": memory_every}


def saved(steps: SaveSteps, first: int, last: int, every: int = 0) -> list[int]:
    return [step for step in range(first, last + 1) if steps.due(step, every)]


def test_without_an_order_each_multiple_of_the_codes_own_interval_is_due() -> None:
    assert saved(SaveSteps(), 1, 35, every=10) == [10, 20, 30]
    assert saved(SaveSteps(), 21, 35, every=10) == [30], "after a restore as well"
    assert saved(SaveSteps(), 1, 100) == []


@pytest.mark.parametrize("ordered", [False, True])
def test_where_numbers_fall_intervals_count_from_there(ordered: bool) -> None:
    """An epoch, or a second training: its checkpoints do not wait until it has come as far as the one before."""
    steps = SaveSteps()
    if ordered:
        steps.take(order(1, 12, "valid", every=10))
    assert [step for step in range(1, 31) if steps.due(step, every=10)] == (
        [10, 12, 20, 22, 30] if ordered else [10, 20, 30]
    )
    assert [step for step in range(1, 31) if steps.due(step, every=10)] == [10, 20, 30]


def test_an_order_for_a_step_that_does_not_come_is_settled_where_numbers_fall() -> None:
    steps = SaveSteps()
    steps.due(40)
    steps.take(order(1, 50, "proposed"))
    steps.take(order(1, 50, "valid"))
    assert not any(steps.due(step) for step in (0, 49, 50, 51))
    report = steps.report()
    assert report is not None
    assert report["state"] == "withdrawn"


def test_a_proposal_alone_is_not_followed() -> None:
    steps = SaveSteps()
    steps.wait_seconds = 0
    steps.take(order(1, 5, "proposed"))
    assert saved(steps, 1, 10) == []
    assert (steps.report() or {})["state"] == "late"


def test_a_valid_order_is_followed_and_its_interval_counts_from_there() -> None:
    steps = SaveSteps()
    assert saved(steps, 1, 12, every=10) == [10]
    steps.take(order(1, 25, "proposed", every=7))
    steps.take(order(1, 25, "valid", every=7))
    assert saved(steps, 13, 24, every=10) == [20], "the old interval counts until then"
    assert saved(steps, 25, 50, every=10) == [25, 30, 32, 39, 40, 46, 50], "the code's own stays due"
    assert steps.report() == {
        "asked": 50,
        "number": 1,
        "step": 25,
        "every": 7,
        "own_every": 10,
        "in_force": 1,
        "state": "followed",
    }


def test_another_interval_is_one_line_in_the_output_of_rank_0(caplog: pytest.LogCaptureFixture) -> None:
    for shows in (False, True):
        steps = SaveSteps()
        steps.shows = shows
        steps.due(1, 10)
        for number, step in ((1, 15), (2, 25)):
            for state in ("proposed", "valid"):
                steps.take(order(number, step, state, every=7))
            steps.due(step, 10)
    assert [one.getMessage() for one in caplog.records] == [
        "understudy: the control plane orders a checkpoint each 7 steps from step 15 on, before: 10"
    ]


@pytest.mark.parametrize("memory_first", [True, False])
def test_saves_in_memory_have_an_interval_of_their_own_in_the_same_order(memory_first: bool) -> None:
    steps = SaveSteps()
    found: dict[bool, list[int]] = {True: [], False: []}

    def train(first: int, last: int) -> None:
        for step in range(first, last + 1):
            for in_memory in (memory_first, not memory_first):
                if steps.due(step, 5 if in_memory else 20, in_memory):
                    found[in_memory].append(step)

    train(1, 12)
    steps.take(order(1, 25, "proposed", 7, 3))
    steps.take(order(1, 25, "valid", 7, 3))
    train(13, 40)
    assert found == {True: [5, 10, 15, 20, 25, 28, 30, 31, 34, 35, 37, 40], False: [20, 25, 32, 39, 40]}
    report = steps.report() or {}
    assert (report["asks_memory"], report["memory_every"], report["own_memory_every"]) == (True, 3, 5)


def test_an_order_is_late_once_the_step_was_asked_for_in_memory_alone() -> None:
    steps = SaveSteps()
    assert not steps.due(4)
    assert not steps.due(5, in_memory=True)
    steps.take(order(1, 5, "proposed"))
    assert (steps.report() or {})["state"] == "late"


def test_an_order_without_interval_is_one_save_more() -> None:
    steps = SaveSteps()
    assert saved(steps, 1, 12, every=10) == [10]
    for state in ("proposed", "valid"):
        steps.take(order(1, 15, state))
    assert saved(steps, 13, 40, every=10) == [15, 20, 30, 40]


def test_a_step_that_is_not_asked_for_is_made_up_for_with_the_next() -> None:
    steps = SaveSteps()
    steps.take(order(1, 7, "proposed", every=10))
    steps.take(order(1, 7, "valid", every=10))
    assert [step for step in range(0, 40, 4) if steps.due(step)] == [8, 20, 28]


def test_a_rank_that_has_passed_the_step_answers_that() -> None:
    steps = SaveSteps()
    steps.due(8)
    steps.take(order(1, 8, "proposed"))
    assert (steps.report() or {})["state"] == "late"
    steps.take(order(1, 8, "withdrawn"))
    steps.take(order(2, 12, "proposed"))
    steps.take(order(2, 12, "valid"))
    assert saved(steps, 9, 20) == [12]


def test_a_withdrawn_order_is_not_followed() -> None:
    steps = SaveSteps()
    for state in ("proposed", "withdrawn"):
        steps.take(order(1, 5, state))
    assert saved(steps, 1, 20, every=10) == [10, 20]


def test_a_rank_at_the_step_waits_for_what_became_of_the_order() -> None:
    steps, answers = SaveSteps(), []
    steps.take(order(1, 5, "proposed"))
    waiting = threading.Thread(target=lambda: answers.append(steps.due(5)))
    waiting.start()
    while (steps.report() or {}).get("asked") != 5:
        pass
    steps.take(order(1, 5, "valid"))
    waiting.join(10)
    assert answers == [True]


def test_a_process_that_starts_later_follows_what_the_others_follow() -> None:
    steps = SaveSteps()
    steps.take(order(3, 100, "valid", every=50))
    assert saved(steps, 101, 220, every=40) == [120, 150, 160, 200]
    late = SaveSteps()
    late.due(120, 40)
    late.take(order(3, 100, "valid", every=50))
    assert saved(late, 121, 220, every=40) == [150, 160, 200]


def test_an_older_order_is_ignored() -> None:
    steps = SaveSteps()
    for number, step in ((2, 10), (1, 5)):
        for state in ("proposed", "valid"):
            steps.take(order(number, step, state))
    assert saved(steps, 1, 20) == [10]


@pytest.mark.parametrize("message", [{}, {"number": "x", "step": 1}])
def test_an_order_that_cannot_be_read_changes_nothing(message: dict[str, Any]) -> None:
    steps = SaveSteps()
    with pytest.raises((KeyError, ValueError)):
        steps.take(message)
    assert saved(steps, 1, 20, every=10) == [10, 20]


class Gang:
    """Ranks that are not coupled at all, and messages that take any time. Each rank's messages keep their order."""

    def __init__(self, world: int, every: int, choice: random.Random) -> None:
        self.ranks = [SaveSteps() for _ in range(world)]
        self.at = [0] * world
        self.saves: list[list[tuple[int, bool]]] = [[] for _ in range(world)]
        self.on_the_way: list[list[dict[str, Any]]] = [[] for _ in range(world)]
        self.every, self.choice = every, choice
        self.number = 0
        self.open: dict[str, Any] | None = None
        self.valid = 0

    def advance(self, rank: int) -> None:
        steps, step = self.ranks[rank], self.at[rank] + 1
        known = steps.report() or {}
        if known.get("state") == "proposed" and known["step"] <= step:
            return  # it waits there
        self.at[rank] = step
        for in_memory in (True, False):
            if steps.due(step, self.every, in_memory):
                self.saves[rank].append((step, in_memory))

    def deliver(self, rank: int) -> None:
        if self.on_the_way[rank]:
            self.ranks[rank].take(self.on_the_way[rank].pop(0))

    def control(self) -> None:
        known = [steps.report() or {} for steps in self.ranks]
        states = [one.get("state") if one.get("number") == self.number else None for one in known]
        if self.open is None:
            self.number += 1
            step = max(self.at) + self.choice.randint(1, 6)
            self.open = order(self.number, step, "proposed", *self.choice.choices([0, 3, 7], k=2))
        elif self.open["state"] == "proposed" and all(state == "proposed" for state in states):
            self.open, self.valid = {**self.open, "state": "valid"}, self.valid + 1
        elif self.open["state"] == "proposed" and ("late" in states or self.choice.random() < 0.05):
            self.open = {**self.open, "state": "withdrawn"}
        elif all(state in ("followed", "withdrawn", "late") for state in states):
            self.open = None
            return
        else:
            return
        for waiting in self.on_the_way:
            waiting.append(self.open)


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(0, 9))
def test_no_rank_ever_saves_before_a_step_before_which_another_one_does_not(seed: int, world: int, every: int) -> None:
    choice = random.Random(seed)  # noqa: S311 - a test
    gang = Gang(world, every, choice)
    for rank in range(world):
        gang.advance(rank)
    for _ in range(600):
        act = choice.choice([gang.advance, gang.deliver])
        act(choice.randrange(world))
        if choice.random() < 0.2:
            gang.control()
    reached = min(gang.at)
    first, *others = [[one for one in saves if one[0] <= reached] for saves in gang.saves]
    assert all(one == first for one in others)


def test_orders_become_valid_in_that_test() -> None:
    choice = random.Random(1)  # noqa: S311 - a test
    gang = Gang(3, 5, choice)
    for _ in range(3000):
        choice.choice([gang.advance, gang.deliver, gang.deliver])(choice.randrange(3))
        gang.control()
    assert gang.valid > 3
