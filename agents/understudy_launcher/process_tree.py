"""The processes below this one: finding and killing them, and how many the kernel killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from understudy_wire.process_stat import ProcessStat, read_stat

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def become_subreaper() -> bool:
    """Orphans below this process become its children, so that nothing leaves the tree. False: the kernel refuses."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def parents() -> dict[int, int]:
    """Process id → parent's, of every process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _living(entry)) is not None:
            found[int(entry.name)] = stat.parent
    return found


def _living(process: Path) -> ProcessStat | None:
    try:
        stat = read_stat(process / "stat")
    except OSError:
        return None
    return None if stat.has_ended else stat


def started_at(pid: int) -> int | None:
    """Start time by the kernel's clock: it distinguishes a process from a later one. None: it has ended."""
    stat = _living(Path(f"/proc/{pid}"))
    return stat.started_ticks if stat is not None else None


def first_catching(root: int, which: int) -> list[int]:
    """This process where it has a handler for the signal; else the first ones below it that have.

    A shell that waits for the training has none. Workers of a data loader have the training's own.
    """
    children = _children()
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if catches(pid, which):
            found.append(pid)
        else:
            waiting.extend(children.get(pid, ()))
    return found


CAUGHT_BY_ALL = (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGSYS)
"""No program has a handler for these of its own. A shell with a trap on EXIT has, for every signal that would end it,
and so has Go's runtime, in which Apptainer is written: they end, or pass the signal on, and the training is below them.
"""


def catches(pid: int, which: int) -> bool:
    """True if the program has a handler of its own for this signal."""
    return has_handler(pid, which) and not all(has_handler(pid, one) for one in CAUGHT_BY_ALL)


def has_handler(pid: int, which: int) -> bool:
    """True if the process has any handler for this signal: SigCgt of proc(5), whose lowest bit is signal 1."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = int(next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0"), 16)
    return bool(caught >> (which - 1) & 1)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    return children


def below(root: int | None = None) -> list[int]:
    children = _children()
    found: list[int] = []
    waiting = list(children.get(root or os.getpid(), ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(children.get(pid, ()))
    return found


def kill_below() -> list[int]:
    """SIGKILL everything below this process, a subreaper that nothing below it can leave. Returns what is still there.

    A program that runs as another user (setuid) is not a rank, and cannot be killed from here: Slurm does that.
    """
    of_other_users = {pid for pid in below() if not _kill(pid)}
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [pid for pid in below() if pid not in of_other_users]


def kill_tree(root: int) -> None:
    """SIGKILL for a child and all below it. A process that has left that tree is below this one, and ends with it."""
    for pid in (root, *below(root)):
        _kill(pid)


def _kill(pid: int) -> bool:
    """False: it runs as another user."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def end_everything_below(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while kill_below() and time.monotonic() < deadline:
        time.sleep(0.005)


def oom_kills(own: Path = OWN_GROUP, mount: Path = GROUPS) -> int:
    """Processes of the group and of those below it that were killed for want of memory; 0 where none are counted.

    Source: `oom_kill` of memory.events, Documentation/admin-guide/cgroup-v2.rst. A line of /proc/self/cgroup that
    begins with "0::" is of v2.
    """
    try:
        group = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        events = (mount / group.lstrip("/") / "memory.events").read_text()
        return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0
