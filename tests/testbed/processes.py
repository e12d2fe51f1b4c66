"""Finding and ending processes through /proc.

Belongs here: what a Linux process is, who descends from whom, and how to end them without ever hitting a
stranger that got a used process id. Must not: anything about Slurm.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy_wire.process_stat import read_stat

MARK = "UNDERSTUDY_TESTBED"
"""Environment variable that every process of a testbed carries: the testbed's directory."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class ProcessesLeft(Exception):
    """Processes outlived SIGKILL for longer than the bound."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `started_ticks` makes it unique where process ids are used again."""

    pid: int
    parent: int
    name: str
    state: str
    started_ticks: int


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's, so that none is out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


def read_process(pid: int) -> Process | None:
    """The process as it is now; None where there is none."""
    try:
        stat = read_stat(Path(f"/proc/{pid}/stat"))
    except OSError:
        return None
    return Process(pid, stat.parent, stat.command, stat.state, stat.started_ticks)


def is_running(process: Process) -> bool:
    """True if this very process still runs; a zombie does not."""
    now = read_process(process.pid)
    return now is not None and now.started_ticks == process.started_ticks and now.state not in "ZX"


def all_processes() -> dict[int, Process]:
    """Every process of the machine that is not a zombie."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name))
            if process is not None and process.state not in "ZX":
                found[process.pid] = process
    return found


def descendants(roots: Iterable[int], processes: Mapping[int, Process]) -> set[int]:
    """`roots` and everything below them, as far as they are in `processes`."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found & processes.keys()


def environment_of(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty where it cannot be read any more."""
    pairs = (item.partition(b"=") for item in _raw_environment(pid) if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command_of(pid: int) -> bytes:
    """Its command, each argument ended by a zero byte; empty where it cannot be read any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def holds_open(pid: int, path: Path) -> bool:
    """True if the process has `path`, or a file below it, open.

    In another mount namespace the directory may hang below some other: then that stands before it.
    """
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if f"{path}/" in f"{descriptor.readlink()}/":
                    return True
    return False


def signal_process(process: Process, number: signal.Signals) -> None:
    """Send a signal to this very process; nothing happens where it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = read_process(process.pid)
        # The descriptor holds on to one process: if it is the right one now, the signal can reach no other.
        if now is not None and now.started_ticks == process.started_ticks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def kill_all(find: Callable[[], Iterable[Process]], timeout_seconds: float = 20.0) -> list[Process]:
    """SIGKILL what `find` finds, again and again until it finds nothing; return what was hit.

    Repeating matters: a process can fork between the search and the signal.
    """
    deadline = time.monotonic() + timeout_seconds
    hit: dict[tuple[int, int], Process] = {}
    while left := list(find()):
        if time.monotonic() > deadline:
            listed = ", ".join(f"{process.pid} ({process.name})" for process in left)
            raise ProcessesLeft(f"still there {timeout_seconds} s after SIGKILL: {listed}")
        for process in left:
            hit[process.pid, process.started_ticks] = process
            signal_process(process, signal.SIGKILL)
        time.sleep(0.01)
    return list(hit.values())


def marked(directory: Path) -> list[Process]:
    """The processes that carry the mark of exactly this directory, and all their descendants."""
    processes = all_processes()
    roots = [pid for pid in processes if pid != os.getpid() and _is_marked(pid, directory)]
    found = descendants(roots, processes) - {os.getpid()}
    return [processes[pid] for pid in sorted(found)]


def sweep(directory: Path, timeout_seconds: float = 20.0) -> list[Process]:
    """End what an earlier testbed in `directory` left behind; return what was ended."""
    return kill_all(lambda: marked(directory), timeout_seconds)


def _is_marked(pid: int, directory: Path) -> bool:
    entries = _raw_environment(pid)
    if f"{MARK}={directory}".encode() in entries:
        return True
    if entries == [b""]:  # a thread of the kernel, or a process that is gone
        return False
    # A program that shows its state as its title writes it over its environment, from the front. Such a one is
    # known by the files it holds.
    return b"=" not in entries[0] and holds_open(pid, directory)


def _raw_environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return [b""]
