from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_agent.sample.kernel_log import (
    LINES_OF_A_PATTERN_MAX,
    RECORD_BYTES_MAX,
    DeviceSource,
    FileSource,
    KernelLog,
    open_source,
)
from understudy_wire.facts import KernelEvent, KernelLogPolicy, KernelPattern


def xid_line(sequence: int, xid: int = 79) -> str:
    return f"4,{sequence},1000000,-;NVRM: Xid (PCI:0000:05:00): {xid}, GPU has fallen off the bus.\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


@pytest.fixture
def log(path: Path) -> Iterator[KernelLog]:
    source = FileSource(path)
    yield KernelLog(source, "boot-1")
    source.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def sequences(log: KernelLog) -> list[int]:
    return [event.sequence for event in log.read()]


def test_what_was_logged_before_the_agent_started_counts(path: Path, log: KernelLog) -> None:
    append(path, xid_line(1) + "6,2,5,-;usb 1-1: new device\n" + xid_line(3))
    assert sequences(log) == [1, 3]
    assert sequences(log) == []


def test_half_a_line_waits_for_its_end(path: Path, log: KernelLog) -> None:
    append(path, xid_line(1)[:30])
    assert sequences(log) == []
    append(path, xid_line(1)[30:])
    assert sequences(log) == [1]


def test_malformed_lines_are_counted_and_reported_and_the_next_line_is_read(path: Path, log: KernelLog) -> None:
    path.write_bytes(b"nonsense\n\xff\xfe\x00\n" + xid_line(2).encode())
    assert sequences(log) == [2]
    [problem] = log.problems()
    assert "2 lines" in problem


def test_a_line_without_end_is_skipped_and_reading_continues(path: Path, log: KernelLog) -> None:
    append(path, "x" * (RECORD_BYTES_MAX + 1))
    assert sequences(log) == []
    append(path, "\n" + xid_line(5))
    assert sequences(log) == [5]
    assert any("skipped" in problem for problem in log.problems())


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(path: Path, log: KernelLog) -> None:
    append(path, xid_line(1))
    assert sequences(log) == [1]
    append(path, xid_line(2))
    path.rename(path.with_suffix(".1"))
    append(path, xid_line(3))
    assert sequences(log) + sequences(log) == [2, 3]


def test_a_truncated_file_is_read_from_its_start(path: Path, log: KernelLog) -> None:
    append(path, xid_line(1) + xid_line(2))
    assert sequences(log) == [1, 2]
    path.write_text(xid_line(3))
    assert sequences(log) == [3]


def test_a_file_that_has_not_changed_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, offset: int) -> bytes:
        reads.append(offset)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    append(path, xid_line(1))
    source = FileSource(path)
    assert len(source.read_lines()) == 1
    assert source.read_lines() == source.read_lines() == []
    assert reads == [0]
    append(path, xid_line(2))
    assert len(source.read_lines()) == 1
    assert len(reads) == 2
    source.close()


def test_a_missing_file_is_a_problem_until_it_exists(path: Path, log: KernelLog) -> None:
    assert sequences(log) == []
    assert "cannot be read" in log.problems()[0]
    append(path, xid_line(1))
    assert sequences(log) == [1]
    assert log.problems() == []


def test_an_event_carries_the_time_at_which_it_was_logged(path: Path, log: KernelLog) -> None:
    append(path, f"4,1,{time.monotonic_ns() // 1000},-;NVRM: Xid (PCI:0000:05:00): 79, x\n")
    [event] = log.read()
    assert event.at == pytest.approx(time.time(), abs=0.5)


def test_an_event_is_delivered_within_a_tenth_of_a_second(path: Path) -> None:
    path.touch()

    async def follow() -> float:
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def deliver(events: list[KernelEvent]) -> None:
            arrived.set_result(time.monotonic())

        task = asyncio.create_task(KernelLog(open_source(path), "b").follow(deliver))
        await asyncio.sleep(0.1)
        append(path, xid_line(1))
        written = time.monotonic()
        latency_seconds = await asyncio.wait_for(arrived, 5) - written
        task.cancel()
        return latency_seconds

    assert asyncio.run(follow()) < 0.15


class ScriptedKernel:
    """Replaces read(2) on /dev/kmsg."""

    def __init__(self, *results: bytes | OSError) -> None:
        self.results = list(results)

    def read(self, _descriptor: int, _length: int) -> bytes:
        result = self.results.pop(0) if self.results else BlockingIOError()
        if isinstance(result, OSError):
            raise result
        return result


def test_overwritten_records_are_reported_and_reading_continues() -> None:
    kernel = ScriptedKernel(
        xid_line(1).encode(), BrokenPipeError(), xid_line(900).encode() + b" SUBSYSTEM=pci\n DEVICE=+pci:x\n"
    )
    source = DeviceSource(Path(os.devnull), kernel.read)
    log = KernelLog(source, "b")
    try:
        assert sequences(log) == [1, 900]
        assert any("overruns: 1" in problem for problem in log.problems())
    finally:
        source.close()


def test_a_device_that_fails_is_reported_and_opened_again() -> None:
    kernel = ScriptedKernel(OSError(5, "Input/output error"), xid_line(4).encode())
    source = DeviceSource(Path(os.devnull), kernel.read)
    log = KernelLog(source, "b")
    try:
        assert sequences(log) == []
        assert "Input/output error" in log.problems()[0]
        assert sequences(log) == [4]
        assert log.problems() == []
    finally:
        source.close()


@pytest.mark.integration
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="needs a readable /dev/kmsg")
def test_the_log_of_this_kernel_is_read_without_malformed_lines() -> None:
    source = open_source(Path("/dev/kmsg"))
    log = KernelLog(source, "b")
    try:
        assert isinstance(source, DeviceSource)
        assert source.read_lines()
        log.read()
        assert not any("not records" in problem for problem in log.problems())
    finally:
        source.close()


OOM = KernelPattern(("Memory cgroup out of memory: ",), "Memory cgroup out of memory: Killed process")
XFS = KernelPattern(("XFS (",), ".")
KILLED = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB"


def plain_line(sequence: int, text: str, seconds: float = 1.0) -> str:
    return f"6,{sequence},{int(seconds * 1e6)},-;{text}\n"


def test_the_agent_passes_on_what_the_control_plane_asks_for_from_the_beginning_of_the_log(
    path: Path, log: KernelLog
) -> None:
    append(path, xid_line(1) + plain_line(2, KILLED) + plain_line(3, "XFS (nvme0n1p1): Mounting V5 Filesystem"))
    assert sequences(log) == [1]
    log.follow_policy(KernelLogPolicy("1", (OOM,)))
    assert log.policy_version == "1"
    assert sequences(log) == [2], "the Xid was passed on already"
    append(path, plain_line(4, KILLED) + plain_line(5, "Memory cgroup out of memory: no process"))
    assert sequences(log) == [4]
    log.follow_policy(KernelLogPolicy("2", (OOM, XFS)))
    assert sequences(log) == [3]
    log.follow_policy(KernelLogPolicy("2", (OOM, XFS)))
    assert sequences(log) == []


def test_a_policy_that_cannot_be_read_is_a_problem_and_the_one_before_stays(path: Path, log: KernelLog) -> None:
    log.follow_policy(KernelLogPolicy("1", (XFS,)))
    log.follow_policy(KernelLogPolicy("2", (KernelPattern(("XFS (",), "("),)))
    append(path, plain_line(1, "XFS (sda): error"))
    assert (sequences(log), log.policy_version) == ([1], "1")
    assert "policy 2 of the control plane cannot be read" in log.problems()[0]


def test_a_storm_of_lines_is_passed_on_in_bounds_and_counted(path: Path, log: KernelLog) -> None:
    log.follow_policy(KernelLogPolicy("1", (XFS,)))
    append(path, "".join(plain_line(i, "XFS (sda): error", seconds=i) for i in range(1, 101)) + xid_line(101))
    assert sequences(log) == [*range(1, LINES_OF_A_PATTERN_MAX + 1), 101]
    assert log.problems() == ["kernel log: 80 lines that begin with 'XFS (' were too many to send"]


def test_a_line_that_is_logged_now_has_the_time_of_now_whatever_the_clock_of_the_log_says(
    path: Path, log: KernelLog
) -> None:
    append(path, xid_line(1))
    (before,) = log.read()
    log.read()
    append(path, xid_line(2))
    (now,) = log.read()
    booted_at = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    assert before.at == pytest.approx(booted_at + 1.0, abs=0.5)
    assert now.at == pytest.approx(time.time(), abs=5.0)


def test_a_device_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "device"
    file.write_text(plain_line(1, KILLED))
    source = DeviceSource(file)  # a file, which can be sought as /dev/kmsg can
    log = KernelLog(source, "boot-1")
    assert sequences(log) == []
    log.follow_policy(KernelLogPolicy("1", (OOM,)))
    assert sequences(log) == [1]
    source.close()
