"""Challenges are remembered once they are used, and no longer than they are valid."""

from __future__ import annotations

import pytest

from tests.stopwatch import best_processor_seconds
from understudy_controlplane.access.challenges import SECONDS, Challenges


class SetClock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def test_a_challenge_that_was_used_is_forgotten_when_it_is_over() -> None:
    clock = SetClock()
    challenges = Challenges(clock)
    early = challenges.make("10.0.0.1")
    clock.at += SECONDS - 1
    late = challenges.make("10.0.0.1")
    assert challenges.use(late)
    assert challenges.use(early)
    clock.at += 2
    assert not challenges.is_valid(early, "10.0.0.1")
    assert not challenges.use(late), "used, and still valid"
    clock.at += SECONDS
    assert challenges.use(challenges.make("10.0.0.1"))
    assert len(vars(challenges)["_used"]) == 1


@pytest.mark.timed
def test_a_fleet_four_times_as_large_enrols_in_about_four_times_the_time() -> None:
    """A restart has every agent enrol within the time for which a challenge is valid."""

    def seconds(nodes: int) -> float:
        challenges = Challenges(SetClock())
        given = [challenges.make("10.0.0.1") for _ in range(nodes)]
        return best_processor_seconds(lambda: [challenges.use(one) for one in given], rounds=3)

    assert min(seconds(8000) / seconds(2000) for _ in range(3)) < 10, "a time that grows with the square is sixteen"
