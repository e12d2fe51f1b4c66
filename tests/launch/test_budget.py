"""What counts as progress, and what earlier allocations have used up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_agent.launch.budget import Budget
from understudy_agent.launch.events import Events
from understudy_agent.launch.launch import Launch
from understudy_agent.launch.progress import FileProgress
from understudy_agent.launch.steps import Step

pytestmark = pytest.mark.integration


class Gang:
    """Its progress file and its launches, each with its beginning."""

    def __init__(self, file: Path, step: Step) -> None:
        self._file = file
        self._step = step
        self.budget = Budget(FileProgress(file), 3, Events(None))

    def reach(self, step: int) -> None:
        self._file.write_text(f"{step}\n")

    def launch(self, number: int, now: float) -> Launch:
        begun = Launch(number, ("n1",), self._step, ordered_at=now, began_at=now)
        self.budget.begin(begun, now)
        return begun

    def has_progressed(self, launch: Launch, now: float) -> bool:
        self.budget.look(launch, now)
        return launch.progressed


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    with subprocess.Popen(["true"]) as srun:
        yield Gang(tmp_path / "steps", Step(0, ("n1",), srun, 0.0))


def test_progress_is_a_step_beyond_every_one_before_it(gang: Gang) -> None:
    gang.reach(100)  # left by an earlier job
    first = gang.launch(0, now=10.0)
    assert not gang.has_progressed(first, now=11.0)
    gang.reach(101)
    assert gang.has_progressed(first, now=12.0)
    second = gang.launch(1, now=20.0)
    gang.reach(90)  # from its checkpoint
    assert not gang.has_progressed(second, now=21.0)
    gang.reach(101)
    assert not gang.has_progressed(second, now=22.0)


def test_the_last_look_at_a_launch_is_not_put_off_though_the_one_before_ended_just_now(gang: Gang) -> None:
    gang.budget.look_at_once(gang.launch(0, now=10.0), now=11.0)
    launch = gang.launch(1, now=11.1)
    gang.reach(1)
    assert not gang.has_progressed(launch, now=11.2), "it is not looked at as often as that"
    gang.budget.look_at_once(launch, now=11.3)
    assert gang.has_progressed(launch, now=11.3)


def test_what_earlier_allocations_spent_and_reached_counts_once(gang: Gang) -> None:
    gang.budget.take_over(2, best=50)
    gang.budget.take_over(2, best=50)
    assert gang.budget.history.without_progress == 2
    launch = gang.launch(0, now=10.0)
    gang.reach(50)
    assert not gang.has_progressed(launch, now=11.0)
    gang.reach(51)
    assert gang.has_progressed(launch, now=12.0)
