"""Reads checkpoints back for the control plane, copies and deletes them, one after another, each in a process with its
owner's rights alone.

A task comes with the answer to a report, and its result goes with the next reports until it has another task. Never as
root: a link that a user has made would lead it anywhere. What cannot be read as the owner is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
from pathlib import Path

import msgspec

from understudy_agent.log import fields, log
from understudy_wire.messages import ReadBack, ReadBackOutcome, ReadBackResult, printable

PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    "from understudy_agent.readback import main; main()"
)
"""It imports what it is made of before it gives up root: users need not be able to read the agent's files."""
SECONDS_MIN, SECONDS_MAX = 600.0, 2 * 3600.0
"""For one task. A file that only seems large must not keep those of others waiting: at 200 MB/s the limit is 1.4 TB."""
TIMES_LONGER = 3.0
"""Than the rate allows: then the file system hangs."""
ENDS_SECONDS = 1.0
RESULT_BYTES_MAX = 65_536


class Readbacks:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.reading: asyncio.Task[None] | None = None
        self._number = 0
        self._of_program = False
        self.result: ReadBackResult | None = None

    def take(self, asked: ReadBack | None) -> None:
        """The task of the newest answer. The same again is no news; another one waits until this one has ended. A
        program is read no further where it is asked for no longer, as where the node is about to run a gang.
        """
        is_over = self._of_program and (asked is None or asked.number != self._number)
        if is_over and self.reading is not None and self.reading.cancel():
            self._number = 0  # asked for again, it is read again
        if asked is None or asked.number == self._number or (self.reading is not None and not self.reading.done()):
            return
        self._number, self.result, self._of_program = asked.number, None, bool(asked.program)
        self.reading = asyncio.get_running_loop().create_task(self._read(asked))

    async def stop(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.reading

    async def _read(self, asked: ReadBack) -> None:
        try:
            outcome, why = await _result(asked)
        except (OSError, KeyError, ValueError, msgspec.MsgspecError) as error:
            outcome, why = ReadBackOutcome.UNSEEN, f"the checkpoint cannot be read as its owner: {error}"
        except TimeoutError:
            outcome, why = ReadBackOutcome.UNSEEN, "reading took too long"
        why = printable(why)  # it names what is in a user's file
        self.result = ReadBackResult(asked.number, outcome, why)
        if asked.program:
            log.info("program_cached", extra=fields(outcome=outcome, reason=why))
        else:
            log.info("checkpoint_read_back", extra=fields(path=asked.path, outcome=outcome, reason=why))


async def _result(asked: ReadBack) -> tuple[ReadBackOutcome, str]:
    size = asked.bytes_max or sum(one.size_bytes for one in asked.files)
    seconds_max = min(SECONDS_MAX, max(SECONDS_MIN, TIMES_LONGER * size / asked.bytes_per_second))
    rights = owner(asked.user_id)
    before: list[str] = []
    if asked.program and memory_is_limited() and shutil.which("systemd-run"):
        before = in_own_unit(seconds_max)
    process = await asyncio.create_subprocess_exec(
        *(*before, sys.executable, "-I", "-c", PROGRAM),
        *(str(number) for number in (int(seconds_max), *rights)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds_max):
            process.stdin.write(msgspec.json.encode(asked) + b"\n")
            output = await process.stdout.read()
            await process.wait()
    finally:
        process.stdin.close()  # which ends it, also in a unit of its own
        await end(process)
    found = msgspec.json.decode(output[:RESULT_BYTES_MAX], type=dict[str, str])
    return ReadBackOutcome(found["outcome"]), found["why"]


async def end(process: asyncio.subprocess.Process) -> None:
    """A program with a user's rights, where it still runs."""
    if process.returncode is None:
        with contextlib.suppress(PermissionError):  # an agent without CAP_KILL: its own alarm ends it
            process.kill()
        with contextlib.suppress(TimeoutError):  # it hangs in the kernel
            await asyncio.wait_for(process.wait(), ENDS_SECONDS)


def memory_is_limited(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Of this service, by systemd. What its processes read counts, too: no more of it stays in the page cache."""
    try:
        own = next(line for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        return (cgroups / own.removeprefix("0::/") / "memory.max").read_text().strip() != "max"
    except (OSError, StopIteration):
        return False


def in_own_unit(seconds_max: float) -> list[str]:
    """Before a command: systemd runs it outside the limits of the agent's service, with no more of root than it needs
    to take its owner's rights. Settings of systemd 239, and none that gives it file systems of its own: programs lie on
    those that are mounted when they are asked for.
    """
    settings = (
        *("Nice=19", "IOSchedulingClass=idle", f"RuntimeMaxSec={seconds_max:.0f}"),
        *("CapabilityBoundingSet=CAP_SETUID CAP_SETGID", "AmbientCapabilities=", "NoNewPrivileges=yes"),
        *("RestrictAddressFamilies=AF_UNIX", "RestrictNamespaces=yes", "RestrictRealtime=yes", "LockPersonality=yes"),
        *("SystemCallArchitectures=native", "SystemCallFilter=@system-service", "SystemCallErrorNumber=EPERM"),
    )
    return [
        *("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--working-directory=/"),
        *(f"--property={one}" for one in settings),
        "--",
    ]


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
