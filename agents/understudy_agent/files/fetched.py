"""Checkpoints that ranks fetched from an object store into the folder for temporary files: removed when their job has
left the node, and does not come back soon; by a process with the rights of their owner, and nothing but that folder.

`understudy.objects` names the folder by the user and the job.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from understudy_agent.files.rights import bound_memory, take_rights
from understudy_agent.files.user_process import ENDS_SECONDS, end, owner, program
from understudy_agent.log import fields, log

TEMPORARY = "/tmp"  # noqa: S108 - nothing is written to it, and it may be full

REMOVED = ".removed"
NUMBER = "(0|[1-9][0-9]{0,9})"
NAME = re.compile(rf"understudy-{NUMBER}-{NUMBER}(\.removed)?")

PROGRAM = program("fetched")

BACK_WITHIN_SECONDS = 600.0
"""A job that is requeued, and starts on this node again within this, finds what it has fetched."""

LOOK_SECONDS = 30.0
JOBS_MAX = 1000
REMOVED_OF_USER_MAX = 16
"""Most that each look removes of what a removal that was broken off has left: a user can make any number of them."""

REMOVE_SECONDS_MAX = 600


class FetchedCheckpoints:
    """Belongs to one event loop."""

    def __init__(self, is_here: Callable[[int], bool], folder: Path | None = None) -> None:
        """`is_here`: whether a rank of this job is connected."""
        self._is_here, self._folder = is_here, folder or Path(os.environ.get("TMPDIR") or TEMPORARY)
        self._gone: dict[int, float] = {}

    def note_gone(self, job_id: int, now: float) -> None:
        """The job has left this node, for ever or until it is requeued."""
        if len(self._gone) < JOBS_MAX or job_id in self._gone:
            self._gone[job_id] = now

    async def follow(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.remove_due(time.monotonic())

    async def remove_due(self, now: float) -> None:
        over = {job_id for job_id, since in self._gone.items() if now - since >= BACK_WITHIN_SECONDS}
        for job_id in over:
            del self._gone[job_id]
        over = {job_id for job_id in over if not self._is_here(job_id)}
        for user_id, path in await asyncio.to_thread(list, self._of_jobs(over)) if over else ():
            await _remove_as(user_id, path)

    def _of_jobs(self, jobs: set[int]) -> Iterator[tuple[int, Path]]:
        """Every user can fill the folder: all of it is looked through, and nothing else of it is kept."""
        removed: Counter[int] = Counter()
        try:
            with os.scandir(self._folder) as entries:
                for named in filter(None, (NAME.fullmatch(entry.name) for entry in entries)):
                    user_id, path = int(named[1]), self._folder / named[0]
                    if not (named[3] or int(named[2]) in jobs) or not _belongs_to(path, user_id):
                        continue
                    removed[user_id] += named[3] is not None
                    if named[3] is None or removed[user_id] <= REMOVED_OF_USER_MAX:
                        yield user_id, path
        except OSError as error:
            log.warning("fetched_checkpoints_not_looked_up", extra=fields(path=self._folder, error=error))


def _belongs_to(path: Path, user_id: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == user_id


async def _remove_as(user_id: int, path: Path) -> None:
    try:
        rights = owner(user_id)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", PROGRAM, str(path), *map(str, rights)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        try:
            code = await asyncio.wait_for(process.wait(), REMOVE_SECONDS_MAX + ENDS_SECONDS)  # its alarm ends it before
        finally:
            await end(process)
    except (OSError, KeyError) as error:  # TimeoutError is an OSError
        log.warning("fetched_checkpoint_not_removed", extra=fields(path=path, error=error))
        return
    if code == 0:
        log.info("fetched_checkpoint_removed", extra=fields(path=path))
    else:
        why = f"its program ended with status {code}"
        log.warning("fetched_checkpoint_not_removed", extra=fields(path=path, error=why))


def remove(path: Path) -> None:
    """Removes a folder of this process's user, and never through a link. First it gets another name: a rank that comes
    back meanwhile finds all of it, or nothing. Raises OSError.
    """
    if not _belongs_to(path, os.geteuid()):
        raise FileNotFoundError(path)
    removed = path
    if path.suffix != REMOVED:
        removed = path.with_name(f"{path.name}{REMOVED}")
        shutil.rmtree(removed, ignore_errors=True)
        path.rename(removed)
    shutil.rmtree(removed)


def main() -> None:
    """Arguments: the folder, and the rights that it takes."""
    path, *rights = sys.argv[1:]
    signal.alarm(REMOVE_SECONDS_MAX)
    bound_memory()  # a user's folder may have millions of entries
    if rights:
        take_rights(*map(int, rights))
    os.nice(19)
    remove(Path(path))
