"""State, parent and age of a process or thread, from its file `stat` of /proc (fs/proc/array.c of Linux)."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessStat:
    command: str  # 15 characters of its program's name
    state: str
    parent: int
    flags: int  # PF_ of include/linux/sched.h
    ran_ticks: int  # in user and kernel mode
    threads: int  # of its process
    started_ticks: int  # since boot; distinguishes a process from a later one of the same number

    @property
    def has_ended(self) -> bool:
        """A zombie with further threads has not: they hold its memory, that of GPUs too, until the last of them is
        gone.
        """
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)


def read_stat(path: Path) -> ProcessStat:
    """Raises OSError: FileNotFoundError or ProcessLookupError where it has ended and is gone."""
    # The name in parentheses can contain spaces and parentheses.
    head, _, tail = path.read_text(errors="replace").rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        raise OSError(errno.EINVAL, "not in the form of /proc/PID/stat", str(path))
    return ProcessStat(
        command=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        flags=int(fields[6]),
        ran_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
    )
