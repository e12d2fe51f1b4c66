"""Records that hooks leave for the agent: one small file each, renamed into place when it is complete.

`refused JOB ATTEMPT TIME REASON` by the Prolog, `gone JOB ATTEMPT TIME` by the Epilog; ATTEMPT is `-` where Slurm does
not pass it. A refusal's file stays until the control plane has the fact, so that none is lost when the agent dies.
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy_agent.facts import Settle
from understudy_agent.hooks.inotify import DirectoryWatch
from understudy_agent.log import fields, log
from understudy_agent.own_files import make_directory
from understudy_wire.facts import JobRefused
from understudy_wire.values import TEXT_CHARACTERS_MAX

POLL_SECONDS = 0.25
"""Interval at which the directory is read when the kernel does not report new files."""

POLL_ANYWAY_SECONDS = 2.0
"""The same when the kernel does report them: for records that become old, and for a directory that was replaced."""

RECORDS_AT_ONCE = 256
RECORD_BYTES_MAX = 1024
UNFINISHED_SECONDS_MAX = 60.0
"""A hook takes milliseconds: a file that is unfinished after this time is from a hook that was killed."""

LOG_BYTES_MAX = 262_144
"""The agent starts a new log file for the hooks above this size. The hooks themselves stop writing at 1 MiB."""

NUMBER_DIGITS_MAX = 10


@dataclass(frozen=True, slots=True)
class JobGone:
    """The job has left this node: its connections that are still open were made before `at`."""

    job_id: int
    at: float


class MalformedRecordError(ValueError):
    """This file is not a record of a hook."""


class HookRecords:
    """Follows `<run directory>/hooks`. `put` takes a fact and a callback for its result, as `FactQueue.put`."""

    def __init__(
        self, run_directory: Path, put: Callable[[JobRefused, Settle], None], on_gone: Callable[[JobGone], None]
    ) -> None:
        self._directory = run_directory / "hooks"
        self._log = run_directory / "hooks.log"
        self._put = put
        self._on_gone = on_gone
        self._waiting: set[str] = set()
        self._malformed = 0
        self._last_malformed = ""
        self._problem = ""

    async def follow(self) -> None:
        """Runs until cancelled. No error of the file system ends it."""
        watch = DirectoryWatch(self._directory)
        try:
            while True:
                watching = watch.open()  # before the look, so that no file between the two is missed
                all_taken = self.look()
                await watch.wait(POLL_ANYWAY_SECONDS if watching and all_taken else POLL_SECONDS)
        finally:
            watch.close()

    def look(self) -> bool:
        """Reads the records that are there, a bounded number at a time. False: there may be more."""
        try:
            make_directory(self._directory, 0o700)
            with os.scandir(self._directory) as entries:
                new = (entry.name for entry in entries if entry.name not in self._waiting)
                found = list(itertools.islice(new, RECORDS_AT_ONCE))
            for name in found:
                self._take(name)
            self._trim_log()
        except OSError as error:
            if not self._problem:
                log.error("hook_records_unreadable", extra=fields(path=self._directory, error=error))
            self._problem = f"{self._directory}: records of the Slurm hooks cannot be read: {error}"
            return False
        self._problem = ""
        return len(found) < RECORDS_AT_ONCE

    def problems(self) -> list[str]:
        malformed = (
            f"{self._malformed} files in {self._directory} were not records of a hook and were removed, the last: "
        )
        return [
            *([self._problem] if self._problem else []),
            *([f"{malformed}{self._last_malformed}"] if self._malformed else []),
        ]

    def _take(self, name: str) -> None:
        path = self._directory / name
        try:
            text, written_at = _read(path)
        except FileNotFoundError:
            return  # renamed into place meanwhile: the next look finds it
        except MalformedRecordError as error:
            self._discard(path, str(error))
            return
        if name.startswith("."):
            if not 0 <= time.time() - written_at < UNFINISHED_SECONDS_MAX:
                self._discard(path, "left unfinished by a hook that was killed")
            return
        try:
            record = parse(text, written_at)
        except MalformedRecordError as error:
            self._discard(path, str(error))
            return
        if isinstance(record, JobGone):
            path.unlink(missing_ok=True)
            self._on_gone(record)
            return
        log.warning("job_refused", extra=fields(job=record.job_id, reason=record.reason))
        self._waiting.add(name)
        self._put(record, lambda error: self._settled(name, error))

    def _settled(self, name: str, error: str | None) -> None:
        """The control plane has the fact, or refused it for good: the file is no longer needed."""
        if error is not None:
            log.error("job_refusal_not_accepted", extra=fields(path=name, error=error))
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as problem:
            log.error("record_not_removed", extra=fields(path=name, error=problem))
            return  # still in `_waiting`: this agent does not send it again
        self._waiting.discard(name)

    def _discard(self, path: Path, why: str) -> None:
        self._malformed += 1
        self._last_malformed = f"{path.name[:80]!r}: {why}"
        log.warning("record_discarded", extra=fields(path=path.name[:80], reason=why))
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self._waiting.add(path.name)  # a directory, for example: it stays, and is named in `problems`

    def _trim_log(self) -> None:
        try:
            if self._log.stat().st_size > LOG_BYTES_MAX:
                self._log.replace(self._log.with_suffix(".log.old"))
        except FileNotFoundError:
            pass


def _read(path: Path) -> tuple[str, float]:
    """The text, and the time at which it was written. Raises MalformedRecordError, FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MalformedRecordError(f"cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MalformedRecordError("not a plain file")
        content = os.read(descriptor, RECORD_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > RECORD_BYTES_MAX:
        raise MalformedRecordError(f"longer than {RECORD_BYTES_MAX} bytes")
    return content.decode("ascii", "replace"), status.st_mtime


def parse(text: str, written_at: float) -> JobRefused | JobGone:
    """Uses `written_at`, which is more precise than the whole seconds in the record. Raises MalformedRecordError."""
    kind, _, rest = text.partition(" ")
    values = rest.split(maxsplit=3)
    if kind not in ("refused", "gone") or len(values) < 3 or not text.endswith("\n"):
        raise MalformedRecordError("not a record")
    job_id, attempt = _number(values[0]), None if values[1] == "-" else _number(values[1])
    if kind == "gone":
        return JobGone(job_id, written_at)
    reason = values[3].strip() if len(values) > 3 else ""
    return JobRefused(
        job_id=job_id, at=round(written_at, 3), reason=reason[:TEXT_CHARACTERS_MAX], restart_count=attempt
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX and int(text) < 2**31):
        raise MalformedRecordError(f"{text[:20]!r} is not a number")
    return int(text)
