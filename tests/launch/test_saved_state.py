"""What a launcher leaves to the one that is started in its place."""

from __future__ import annotations

import os

import pytest

from understudy_launcher.launch_over import LaunchEnd
from understudy_launcher.launch_result import Failure, History
from understudy_launcher.saved_state import LauncherMemory, LaunchMemory, MemoryFile, StepMemory


def memory(number: int) -> LauncherMemory:
    launch = LaunchMemory(
        number=number,
        seats=("n1", "n2"),
        generation=3,
        ordered_at=1.0,
        fault_at=None,
        began_at=2.0,
        processes=8,
        torchrun=False,
        progressed=True,
        over=LaunchEnd({"n2": "an Xid"}, hung_seconds=3.0),
        failures=(Failure("n2", 1, 8, -9),),
        running_when_over=7,
    )
    step = StepMemory(3, ("n1", "n2", "n3"), 4711, 0.5, "2", probe=False)
    return LauncherMemory("ending", launch, (step,), History(ever_progressed=True), 500, took_over=True)


def test_the_newest_record_is_read_and_nothing_where_there_is_none() -> None:
    file = MemoryFile()
    assert file.read() is None
    for number in range(5):
        file.write(memory(number))
        assert file.read() == memory(number)
    file.write(75)
    assert file.read() == 75


@pytest.mark.parametrize("left", range(0, 200, 7))
def test_a_launcher_that_is_killed_while_it_writes_leaves_the_record_before(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any number of bytes, and before the record is announced."""
    file = MemoryFile()
    for number in range(3):
        file.write(memory(number))
    write = os.pwrite

    def killed(descriptor: int, content: bytes, offset: int) -> int:
        write(descriptor, content[:left], offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", killed)
    with pytest.raises(KeyboardInterrupt):
        file.write(memory(3))
    assert file.read() == memory(2)
