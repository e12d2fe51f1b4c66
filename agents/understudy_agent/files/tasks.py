"""Carries out the control plane's tasks on files, one after another, each in a process with the owner's rights alone.

A task comes with the answer to a report, and its result goes with the next reports until the agent has another task.
Never as root: a link that a user has made would lead it anywhere. What cannot be read as the owner is not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

import msgspec

from understudy_agent.files.user_process import end, owner, program
from understudy_agent.log import fields, log
from understudy_wire.files import DeleteFiles, FileOutcome, FileResult, FileTask, WarmFiles
from understudy_wire.values import printable

PROGRAM = program("carry_out")
SECONDS_MIN, SECONDS_MAX = 600.0, 2 * 3600.0
"""Limits for one task. A file that only seems large must not keep those of others waiting: at 200 MB/s the limit is 1.4
TB.
"""
TIMES_LONGER = 3.0
"""A task that takes this many times what the rate allows: then the file system hangs."""
RESULT_BYTES_MAX = 65_536


class FileTasks:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.running: asyncio.Task[None] | None = None
        self._task: FileTask | None = None
        self.result: FileResult | None = None

    def take(self, task: FileTask | None) -> None:
        """The task of the newest answer. The same again is no news; another one waits until this one has ended. A
        program is read no further where the control plane asks for it no longer, as before the node runs a gang.
        """
        number = self._task.number if self._task is not None else None
        is_over = isinstance(self._task, WarmFiles) and (task is None or task.number != number)
        if is_over and self.running is not None and self.running.cancel():
            self._task = number = None  # asked for again, it is read again
        if task is None or task.number == number or (self.running is not None and not self.running.done()):
            return
        self._task, self.result = task, None
        self.running = asyncio.get_running_loop().create_task(self._run(task))

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.running

    async def _run(self, task: FileTask) -> None:
        try:
            outcome, why = await _result(task)
        except TimeoutError:
            outcome, why = FileOutcome.UNSEEN, "it took too long"
        except (OSError, KeyError, ValueError, msgspec.MsgspecError) as error:
            outcome, why = FileOutcome.UNSEEN, f"the agent cannot do it as the owner of the files: {error}"
        why = printable(why)  # it names what is in a user's file
        self.result = FileResult(task.number, outcome, why)
        path = "" if isinstance(task, WarmFiles) else task.path
        kind = task.__struct_config__.tag
        log.info("file_task_done", extra=fields(kind=kind, path=path, outcome=outcome, reason=why))


async def _result(task: FileTask) -> tuple[FileOutcome, str]:
    seconds_max = _seconds_max(task)
    rights = owner(task.user_id)
    before: list[str] = []
    if isinstance(task, WarmFiles) and memory_is_limited() and shutil.which("systemd-run"):
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
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            output = await process.stdout.read()
            await process.wait()
    finally:
        process.stdin.close()  # which ends it, also in a unit of its own
        await end(process)
    found = msgspec.json.decode(output[:RESULT_BYTES_MAX], type=dict[str, str])
    return FileOutcome(found["outcome"]), found["why"]


def _seconds_max(task: FileTask) -> float:
    if isinstance(task, DeleteFiles):
        return SECONDS_MAX
    size = task.bytes_max if isinstance(task, WarmFiles) else sum(one.size_bytes for one in task.files)
    return min(SECONDS_MAX, max(SECONDS_MIN, TIMES_LONGER * size / task.bytes_per_second))


def memory_is_limited(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """True if systemd limits the memory of this service. What its processes read counts, too: no more of it stays in
    the page cache.
    """
    try:
        own = next(line for line in (proc / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        return (cgroups / own.removeprefix("0::/") / "memory.max").read_text().strip() != "max"
    except (OSError, StopIteration):
        return False


def in_own_unit(seconds_max: float) -> list[str]:
    """Words that go before a command: systemd runs it outside the limits of the agent's service, with no more of root
    than it needs to take its owner's rights. Settings of systemd 239, and none that gives it file systems of its own:
    programs lie on those that are mounted when they are asked for.
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
