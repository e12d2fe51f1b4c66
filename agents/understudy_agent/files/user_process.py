"""Starts and ends processes that have a user's rights alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
from pathlib import Path

ENDS_SECONDS = 1.0


def program(module: str) -> str:
    """Python that runs main() of a module of this package. It imports what it is made of before it gives up root: users
    need not be able to read the agent's files.
    """
    path = str(Path(__file__).parents[2])
    return f"import sys; sys.path.insert(0, {path!r}); from understudy_agent.files.{module} import main; main()"


async def end(process: asyncio.subprocess.Process) -> None:
    """A program with a user's rights, where it still runs."""
    if process.returncode is None:
        with contextlib.suppress(PermissionError):  # an agent without CAP_KILL: its own alarm ends it
            process.kill()
        with contextlib.suppress(TimeoutError):  # it hangs in the kernel
            await asyncio.wait_for(process.wait(), ENDS_SECONDS)


def owner(user_id: int) -> list[int]:
    """User, group and further groups whose rights the process takes before it reads anything; none: it has them.
    Raises OSError or KeyError where it would have others, or those of root.
    """
    if user_id == 0:
        raise PermissionError("root's checkpoints are not read")
    if os.geteuid() != 0:
        if user_id != os.geteuid():
            raise PermissionError("the agent does not run as root, nor as the owner")
        return []
    known = pwd.getpwuid(user_id)
    return [user_id, known.pw_gid, *os.getgrouplist(known.pw_name, known.pw_gid)]
