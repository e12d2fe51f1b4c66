"""Processor time, which other programs of the machine change little, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def spent(pid: int, thread: int | None = None) -> float:
    """Seconds of all threads of a process, or of one."""
    tasks = Path(f"/proc/{pid}/task")
    of = tasks.iterdir() if thread is None else [tasks / str(thread)]
    return sum(int((one / "schedstat").read_text().split()[0]) for one in of) / 1e9


def seconds_of(call: Callable[[], object]) -> float:
    """Processor time that this thread takes for it."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def resident_mebibytes(pid: int | str = "self") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
