"""A leader and a standby ask a slurmctld of their own time: it is restarted, slow, or cut from one of them.

`python -m tests.test_cut_from_slurm 1000` plays more of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import cast

import pytest

from understudy_controlplane.decide.leadership import RENEWAL_SECONDS, CutFromSlurm
from understudy_controlplane.fleet.holder import Standby
from understudy_controlplane.lease import POLL_SECONDS
from understudy_controlplane.reach import AGAIN_SECONDS, PATIENCE_SECONDS, SlurmReach
from understudy_controlplane.slurm.protocol import SlurmReads

TURN_SECONDS = 0.0625
SECONDS = 60.0
CUT_AT = 20.0

Spans = list[tuple[float, float]]


def within(spans: Spans, at: float) -> bool:
    return any(begin <= at < end for begin, end in spans)


@dataclass
class Slurm:
    """One that is away refuses, and `scontrol` asks again after a second, or it does not answer at all."""

    random: Random
    away: Spans = field(default_factory=list)
    refuses: bool = True
    seconds_max: float = 0.2

    def answers_at(self, begun: float, cut: Spans) -> float:
        """When a question ends with an answer: later than anyone waits, if none comes."""
        asked = begun
        while within(self.away, asked) or within(cut, asked):
            asked += 1.0 if self.refuses else SECONDS
        answered = asked + self.random.uniform(0.005, self.seconds_max)
        return answered if not within(self.away, answered) else answered + SECONDS


class Machine:
    def __init__(self, slurm: Slurm) -> None:
        self.slurm, self.now = slurm, 0.0
        self.cut: Spans = []
        self.stands: Spans = []
        self.reach = SlurmReach(cast(SlurmReads, None), "", lambda: self.now)
        self._open: dict[float, float] = {}
        self._asks_at = slurm.random.uniform(0, AGAIN_SECONDS)

    def turn(self, now: float) -> bool:
        """False: it stands still."""
        self.now = now
        if within(self.stands, now):
            return False
        for begun, answered_at in list(self._open.items()):
            if answered_at <= now:
                self.reach.note_answer(begun)
            elif now - begun >= PATIENCE_SECONDS:
                self.reach.note_failure(begun, "it did not end in time")
            else:
                continue
            del self._open[begun]
            self.reach._open -= 1
        if now >= self._asks_at:
            self._asks_at = now + AGAIN_SECONDS
            begun_now = self.reach.due()
            if begun_now is not None:
                self._open[begun_now] = self.slurm.answers_at(begun_now, self.cut)
        return True


class Play:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed
        self.slurm = Slurm(self.random, refuses=self.random.random() < 0.5)
        self.leader, self.standby = Machine(self.slurm), Machine(self.slurm)

    def found_at(self) -> float | None:
        """When the leader finds that slurmctld answers the standby alone; None: never."""
        cut, shown = CutFromSlurm(), Standby(0.0, able=False)
        looks_at, shows_at = self.random.uniform(0, RENEWAL_SECONDS), self.random.uniform(0, POLL_SECONDS)
        now = 0.0
        while now < SECONDS:
            now += TURN_SECONDS
            if self.standby.turn(now) and now >= shows_at:
                shows_at = now + POLL_SECONDS
                shown = Standby(0.0, not self.standby.reach.problem(), self.standby.reach.answers % 100)
            if self.leader.turn(now) and now >= looks_at:
                looks_at = now + RENEWAL_SECONDS
                if cut.look(self.leader.reach.unanswered(), {"b": shown} if shown.able else {}, now):
                    return now
        return None

    def times(self, count: int, seconds_max: float) -> Spans:
        begins = [self.random.uniform(5, SECONDS - 5) for _ in range(count)]
        return [(begin, begin + self.random.uniform(0.1, seconds_max)) for begin in begins]


def restarts(play: Play) -> None:
    play.slurm.away = play.times(3, 12)


def restarts_and_is_busy_then(play: Play) -> None:
    restarts(play)
    play.slurm.seconds_max = 1.9


def is_slow(play: Play) -> None:
    play.slurm.seconds_max = 1.9


def leader_stands_still(play: Play) -> None:
    play.leader.stands = play.times(6, 8)


def all_at_once(play: Play) -> None:
    restarts(play)
    play.slurm.seconds_max = 0.9
    play.leader.stands, play.standby.stands = play.times(6, 4), play.times(6, 4)


INNOCENT = [restarts, restarts_and_is_busy_then, is_slow, leader_stands_still, all_at_once]


def moved(what: Callable[[Play], None], seeds: int) -> list[int]:
    found = []
    for seed in range(seeds):
        play = Play(seed)
        what(play)
        if play.found_at() is not None:
            found.append(seed)
    return found


def delays(seeds: int) -> list[float]:
    found = []
    for seed in range(seeds):
        play = Play(seed)
        play.leader.cut = [(CUT_AT, SECONDS)]
        found.append((play.found_at() or SECONDS) - CUT_AT)
    return found


@pytest.mark.parametrize("what", INNOCENT)
def test_what_slurmctld_does_to_both_moves_no_lead(what: Callable[[Play], None]) -> None:
    assert moved(what, 10) == []


def test_a_leader_that_is_cut_from_slurmctld_knows_it_within_four_seconds() -> None:
    found = delays(20)
    assert max(found) < 4.0
    assert median(found) < 3.0


def test_a_standby_that_is_cut_from_slurmctld_takes_no_lead() -> None:
    play = Play(1)
    play.standby.cut = [(CUT_AT, SECONDS)]
    play.leader.cut = [(CUT_AT + 1, SECONDS)]
    assert play.found_at() is None


if __name__ == "__main__":
    seeds = int(sys.argv[1])
    for one in INNOCENT:
        print(f"{one.__name__}: {len(moved(one, seeds))} of {seeds}")
    cut = delays(seeds)
    print(f"cut: median {median(cut):.2f} s, worst {max(cut):.2f} s")
