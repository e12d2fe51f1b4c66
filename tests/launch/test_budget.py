"""What counts as progress, and what earlier allocations have used up."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from understudy_launcher.budget import Budget
from understudy_launcher.event_log import Events
from understudy_launcher.launch import Launch
from understudy_launcher.progress import FileProgress
from understudy_launcher.slurm_steps import Step

pytestmark = pytest.mark.integration


class Gang:
    """Its progress file and its launches, each with its beginning."""

    def __init__(self, file: Path, step: Step) -> None:
        self._file = file
        self._step = step
        self._progress = FileProgress(file)
        self.count_from = 0
        self.budget = Budget(self._progress, 3, Events(None), lambda: self.count_from)

    def reach(self, step: int) -> None:
        self._file.write_text(f"{step}\n")

    def hang(self) -> Callable[[], None]:
        """Its file system hangs, until what is returned is called: a FIFO without a writer stands for it."""
        content = self._file.read_text()
        self._file.unlink()
        os.mkfifo(self._file)

        def goes_on() -> None:
            new = self._file.with_name("new")
            new.write_text(content)
            with self._file.open("w"):  # the reading that hung ends
                new.replace(self._file)
            while self._progress.hangs:
                time.sleep(0.01)

        return goes_on

    @staticmethod
    def stalled_seconds(launch: Launch, now: float) -> float:
        return launch.running_sample(now, {}, None, {}).stalled_seconds

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


def test_while_the_file_with_the_steps_hangs_and_for_as_long_after_it_no_gang_is_hung(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy_launcher.slow_files.HANGS_SECONDS", 0.0)
    launch = gang.launch(0, now=10.0)
    gang.reach(1)
    gang.budget.look(launch, now=11.0)
    assert gang.stalled_seconds(launch, now=14.0) == 3.0
    goes_on = gang.hang()
    gang.budget.look(launch, now=20.0)
    assert gang.stalled_seconds(launch, now=20.0) == 0.0
    goes_on()
    gang.budget.look(launch, now=21.0)
    assert gang.stalled_seconds(launch, now=24.0) == 4.0


def test_what_earlier_allocations_spent_and_reached_counts_once(gang: Gang) -> None:
    gang.budget.take_over(2, best=50)
    gang.budget.take_over(2, best=50)
    assert gang.budget.history.without_progress == 2
    launch = gang.launch(0, now=10.0)
    gang.reach(50)
    assert not gang.has_progressed(launch, now=11.0)
    gang.reach(51)
    assert gang.has_progressed(launch, now=12.0)


def test_a_program_that_begins_again_and_breaks_off_at_the_same_step_makes_no_progress(gang: Gang) -> None:
    """It numbers its steps within an epoch: what its hook reports is counted on, and grows with each launch."""
    gang.budget.take_over(0, best=50)  # of an allocation whose third epoch broke off here
    ends = []
    for number, (count_from, step) in enumerate([(200, 250), (400, 451), (600, 690), (600, 760)]):
        launch = gang.launch(number, now=10.0 * number)
        gang.count_from = count_from
        gang.reach(step)
        assert gang.has_progressed(launch, now=10.0 * number + 1)
        gang.budget.close(launch, now=10.0 * number + 2)
        ends.append(launch.progressed)
    assert ends == [False, False, True, True]


def test_a_file_with_numbers_that_fall_is_progress_as_before(gang: Gang) -> None:
    gang.reach(100)
    launch = gang.launch(0, now=10.0)
    gang.reach(101)
    assert gang.has_progressed(launch, now=11.0)
    gang.reach(3)
    gang.budget.close(launch, now=12.0)
    assert launch.progressed
