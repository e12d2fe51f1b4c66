"""Rights and limits of the processes that work on users' files."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

MEMORY_BYTES_MAX = 512 << 20
"""Most bytes of its address space: it shares the agent's limit, and the content of files is a user's."""


def take_rights(user: int, group: int, *groups: int) -> None:
    """Afterwards no way leads back to root."""
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    if 0 in (*os.getresuid(), os.getresgid()[1]) and user != 0:
        raise PermissionError("the rights of root are not given up")


def bound_memory() -> None:
    """This process shares the agent's limit: it ends before the agent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
