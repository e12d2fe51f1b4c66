"""What the agent sees of a rank's process that finishes no step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from understudy_agent.process_watch import ProcessWatch
from understudy_agent.rank_messages import Hello, RecorderSeen, Steps
from understudy_agent.step_windows import REPORTS_PER_PLACE, WindowBuffer
from understudy_wire.ranks import RECORDERS_PER_REPORT_MAX, GroupPlace, NcclSeen, ProcessNow, ProcessState


def shows(proc: Path, state: str, user_ticks: int = 0, started: int = 500, pid: int = 77) -> None:
    """Line as proc_pid_stat(5) has it, of a program with an unusual name."""
    (proc / str(pid)).mkdir(exist_ok=True)
    text = f"{pid} (a) R (b) {state} 1 77 77 0 -1 4194304 9 0 0 0 {user_ticks} 4 0 0 20 0 3 0 {started} 1 2"
    (proc / str(pid) / "stat").write_text(text)


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        ("R", ProcessState.RUNS),
        ("S", ProcessState.SLEEPS),
        ("D", ProcessState.BLOCKED),
        ("T", ProcessState.STOPPED),
        ("t", ProcessState.TRACED),
        ("Z", ProcessState.GONE),
        ("I", ProcessState.UNKNOWN),
    ],
)
def test_the_state_is_the_kernels(tmp_path: Path, letter: str, state: ProcessState) -> None:
    shows(tmp_path, letter)
    assert ProcessWatch(77, tmp_path).look(1000.0) == ProcessNow(state)
    assert ProcessWatch(78, tmp_path).look(1000.0) == ProcessNow(ProcessState.GONE)


def test_it_is_idle_since_it_last_took_processor_time(tmp_path: Path) -> None:
    watch = ProcessWatch(77, tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    idle = []
    for now, seconds in ((1000, 5.0), (1010, 5.1), (1020, 5.2), (1030, 6.0), (1040, 6.1)):
        shows(tmp_path, "S", int(seconds * ticks))
        seen = watch.look(now)
        idle.append(None if seen is None else seen.idle_seconds)
    assert idle == [0, 10, 20, 0, 10], "the threads of the hook and of NCCL take a little"


def test_what_its_children_compute_is_its_work(tmp_path: Path) -> None:
    watch, child = ProcessWatch(77, tmp_path), tmp_path / "78"
    (tmp_path / "77" / "task" / "79").mkdir(parents=True)
    (tmp_path / "77" / "task" / "79" / "children").write_text("78 ")
    child.mkdir()
    shows(tmp_path, "S")
    for now, ticks in ((1000, 0), (1010, 0), (1020, 900)):
        (child / "stat").write_text(f"78 (cc1) R 77 77 77 0 -1 0 9 0 0 0 {ticks} 4 0 0 20 0 3 0 600 1 2")
        seen = watch.look(now)
    assert seen == ProcessNow(ProcessState.SLEEPS, 0.0)


def test_a_process_that_is_woken_often_works(tmp_path: Path) -> None:
    """It writes to slow storage, which takes little of a processor."""
    watch = ProcessWatch(77, tmp_path)
    shows(tmp_path, "D")
    idle = []
    for now, wakes in ((1000, 5), (1010, 7), (1020, 60)):
        (tmp_path / "77" / "schedstat").write_text(f"123456 789 {wakes}\n")
        seen = watch.look(now)
        idle.append(seen.idle_seconds if seen else None)
    assert idle == [0, 10, 0]


@pytest.mark.parametrize("who", [77, 78])
def test_a_process_that_gets_no_processor_is_not_idle(tmp_path: Path, who: int) -> None:
    """Others load its node: it, or its compiler, would run if it could."""
    (tmp_path / "77" / "task" / "77").mkdir(parents=True)
    (tmp_path / "77" / "task" / "77" / "children").write_text("78 ")
    shows(tmp_path, "S")
    watch, idle = ProcessWatch(77, tmp_path), []
    for now, letter in ((1000, "S"), (1010, "R"), (1020, "R"), (1030, "S")):
        shows(tmp_path, letter if who == 77 else "S")
        shows(tmp_path, letter if who == 78 else "S", pid=78)
        seen = watch.look(now)
        idle.append(seen.idle_seconds if seen else None)
    assert idle == [0, 0, 0, 10]


def test_another_process_with_its_number_is_another(tmp_path: Path) -> None:
    watch = ProcessWatch(77, tmp_path)
    shows(tmp_path, "S")
    watch.look(1000.0)
    shows(tmp_path, "S", started=900)
    assert watch.look(1010.0) == ProcessNow(ProcessState.GONE)


def test_it_reads_what_this_kernel_writes() -> None:
    watch = ProcessWatch(os.getpid())
    assert watch.look() is not None and watch.look() == ProcessNow(ProcessState.RUNS, 0.0)


def test_nothing_is_known_of_a_process_in_another_namespace() -> None:
    assert ProcessWatch(0).look() is None


HELLO = Hello(job_id=7, restart_count=0, rank=0, world_size=64, pid=os.getpid())
SEEN = RecorderSeen([GroupPlace("0:default_pg", 5, 5)])


def test_it_is_looked_at_while_no_step_ends_and_the_recorder_is_forgotten_with_the_next_step() -> None:
    windows = WindowBuffer()
    windows.add(HELLO, Steps(0, [0.1], [0.1]), 1000)
    assert [window.process for window in windows.take()] == [None], "it goes on"
    later = [window for _ in range(REPORTS_PER_PLACE) for window in windows.take()]
    assert [window.process is not None for window in later] == [True]
    windows.place(HELLO, SEEN, 1000)
    (window,) = windows.take()
    assert window.recorder is not None and window.recorder.groups == SEEN.groups
    windows.add(HELLO, Steps(1, [0.1], [0.1]), 1000)
    assert [window.recorder for window in windows.take()] == [None]


def test_an_answer_of_nccl_goes_with_the_next_report_and_is_forgotten_with_the_next_step() -> None:
    windows, seen = WindowBuffer(), NcclSeen("2.29.2", 1, still=True)
    windows.note_nccl(HELLO, 1000, seen)
    assert windows.take() == [], "the rank is not there"
    windows.add(HELLO, Steps(0, [0.1], [0.1]), 1000)
    windows.take()
    windows.note_nccl(HELLO, 1000, seen)
    assert [window.nccl for window in windows.take()] == [seen]
    windows.add(HELLO, Steps(1, [0.1], [0.1]), 1000)
    later = [window.nccl for _ in range(2 * REPORTS_PER_PLACE) for window in windows.take()]
    assert later and {*later} == {None}


def test_a_report_has_few_recorders_and_the_next_has_the_others() -> None:
    """They are large, and a report that is too large would be refused."""
    windows = WindowBuffer()
    for rank in range(RECORDERS_PER_REPORT_MAX + 3):
        windows.place(Hello(job_id=7, restart_count=0, rank=rank, world_size=64), SEEN, 1000)
    assert [len(windows.take()) for _ in range(3)] == [RECORDERS_PER_REPORT_MAX, 3, 0]


def test_an_answer_does_not_hide_for_how_long_the_process_has_done_nothing(tmp_path: Path) -> None:
    shows(tmp_path, "S")
    windows = WindowBuffer()
    windows.add(HELLO, Steps(1, [1.0], [1.0]), 1000)
    (place,) = windows._places.values()
    place.process = ProcessWatch(77, tmp_path)
    place.process.look(1000.0)
    windows.place(HELLO, SEEN, 1000)
    (place,) = windows._places.values()
    seen = place.process.look(1060.0)
    assert seen is not None and seen.idle_seconds == 60.0
