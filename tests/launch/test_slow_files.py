"""A file system that hangs costs the launcher one short wait, and nothing else."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from understudy_launcher.nodes import FileVerdicts
from understudy_launcher.progress import FileProgress
from understudy_launcher.slow_files import LINES_MAX, READ_SECONDS_MAX, LateText, SlowRead


def test_a_value_is_read_when_it_is_asked_for() -> None:
    values = iter(range(100))
    slow = SlowRead(lambda: next(values), -1)
    assert [slow.newest() for _ in range(3)] == [0, 1, 2]


def test_while_a_reading_hangs_its_last_value_stands_and_it_is_not_waited_for_again() -> None:
    goes_on, hangs = threading.Event(), False

    def read() -> int:
        if hangs:
            goes_on.wait(30)
            return 2
        return 1

    slow = SlowRead(read, 0)
    assert slow.newest() == 1
    hangs = True
    began = time.monotonic()
    assert [slow.newest() for _ in range(100)] == [1] * 100
    assert READ_SECONDS_MAX <= time.monotonic() - began < READ_SECONDS_MAX + 1
    goes_on.set()
    while slow.newest() == 1:
        time.sleep(0.01)
    assert slow.newest() == 2


def test_a_reading_that_is_only_slow_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in many always is on a busy file system: a gang that stands still would never be taken for hung."""
    goes_on = threading.Event()
    slow = SlowRead(lambda: goes_on.wait(30), False)
    monkeypatch.setattr("understudy_launcher.slow_files.HANGS_SECONDS", 60.0)
    slow.newest()
    seen = [slow.hangs]
    monkeypatch.setattr("understudy_launcher.slow_files.HANGS_SECONDS", 0.0)
    seen.append(slow.hangs)
    assert seen == [False, True]
    goes_on.set()


def test_progress_and_verdicts_on_a_file_system_that_hangs(tmp_path: Path) -> None:
    """A FIFO without a writer stands for it: opening it waits."""
    os.mkfifo(tmp_path / "steps")
    os.mkfifo(tmp_path / "bad")
    began = time.monotonic()
    progress, verdicts = FileProgress(tmp_path / "steps"), FileVerdicts(tmp_path / "bad")
    assert progress.step(1.0) is None
    assert verdicts.poll() == {}
    assert time.monotonic() - began < 5
    for name, content in (("steps", "41 42"), ("bad", "n2 Xid 79")):
        (tmp_path / "new").write_text(content)
        with (tmp_path / name).open("w"):  # the reading that hung ends
            (tmp_path / "new").replace(tmp_path / name)
    while progress.step(1.0) is None or not verdicts.poll():
        time.sleep(0.01)
    assert progress.step(1.0) == 42
    assert verdicts.poll() == {"n2": "Xid 79"}


def test_what_is_written_to_a_file_that_hangs_is_dropped_beyond_a_bound_and_counted(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open(reading) as reader, open(writing, "w") as file:  # noqa: PTH123 - descriptors
        text = LateText(file)
        line = "x" * 99 + "\n"
        began = time.monotonic()
        for _ in range(LINES_MAX + 5000):  # 1.5 MB: the pipe takes 64 KiB
            text.write(line)
        assert time.monotonic() - began < 5
        found = [reader.readline() for _ in range(LINES_MAX)]
        text.write("the last\n")
        while found[-1] != "the last\n":
            found.append(reader.readline())
        dropped = [int(one.split()[1]) for one in found if "were dropped" in one]
        assert dropped
        assert found.count(line) + sum(dropped) == LINES_MAX + 5000
        text.close()


def test_a_disk_that_is_full_costs_the_text_alone() -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - to close it fails, too
    text = LateText(full)
    text.write("lost\n")
    began = time.monotonic()
    text.close()
    assert time.monotonic() - began < 1
    with contextlib.suppress(OSError):
        full.close()
