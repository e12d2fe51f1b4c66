"""What the kernel counts of this process's control group (cgroup v2)."""

from __future__ import annotations

from pathlib import Path

OWN = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def oom_kills(own: Path = OWN, mount: Path = MOUNT) -> int:
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
