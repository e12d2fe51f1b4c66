"""What hooks leave for the agent: one small file each, renamed into place when it is whole.

`refused JOB ATTEMPT TIME REASON` by the Prolog, `gone JOB ATTEMPT TIME` by the Epilog; ATTEMPT is `-` where Slurm does
not tell it. A refusal's file stays until the control plane has the fact, so that none is lost with an agent that dies.
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
from understudy_agent.wire import TEXT_CHARACTERS_MAX, JobRefused

POLL_SECONDS = 0.25
"""So often it is looked where the kernel does not tell of new files."""

LOOK_ANYWAY_SECONDS = 2.0
"""... and so often where it does: for what only time changes, and for a directory that was exchanged."""

RECORDS_AT_ONCE = 256
RECORD_BYTES_MAX = 1024
UNFINISHED_SECONDS_MAX = 60.0
"""A hook takes milliseconds: what is unfinished after this was left by one that was killed."""

LOG_BYTES_MAX = 262_144
"""The hooks' own log is begun anew above this size. They themselves stop at 1 MiB."""

NUMBER_DIGITS_MAX = 10


@dataclass(frozen=True, slots=True)
class Gone:
    """The job has left this node: whatever of it still talks to us was connected before `at`."""

    job_id: int
    at: float


class RubbishError(ValueError):
    """This is no record of a hook's."""


class HookRecords:
    """Follows `<run directory>/hooks`. `put` takes a fact and is told what became of it, as `FactQueue.put`."""

    def __init__(
        self, run_directory: Path, put: Callable[[JobRefused, Settle], None], on_gone: Callable[[Gone], None]
    ) -> None:
        self._directory = run_directory / "hooks"
        self._log = run_directory / "hooks.log"
        self._put = put
        self._on_gone = on_gone
        self._waiting: set[str] = set()
        self._rubbish = 0
        self._last_rubbish = ""
        self._trouble = ""

    async def follow(self) -> None:
        """Until cancelled. No error of the file system ends it."""
        watch = DirectoryWatch(self._directory)
        try:
            while True:
                told = watch.open()  # before the look: what comes between the two is told
                all_taken = self.look()
                await watch.wait(LOOK_ANYWAY_SECONDS if told and all_taken else POLL_SECONDS)
        finally:
            watch.close()

    def look(self) -> bool:
        """Take in what is there now; a bounded number at a time. False: something may be left."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.scandir(self._directory) as entries:
                new = (entry.name for entry in entries if entry.name not in self._waiting)
                found = list(itertools.islice(new, RECORDS_AT_ONCE))
            for name in found:
                self._take(name)
            self._trim_log()
        except OSError as error:
            if not self._trouble:
                log.error("hook_records_unreadable", extra=fields(directory=self._directory, reason=error))
            self._trouble = f"what the Slurm hooks leave in {self._directory} cannot be taken in: {error}"
            return False
        self._trouble = ""
        return len(found) < RECORDS_AT_ONCE

    def problems(self) -> list[str]:
        rubbish = f"{self._rubbish} files in {self._directory} were no hook's records and removed, at last "
        return [
            *([self._trouble] if self._trouble else []),
            *([f"{rubbish}{self._last_rubbish}"] if self._rubbish else []),
        ]

    def _take(self, name: str) -> None:
        path = self._directory / name
        try:
            text, written_at = _read(path)
        except FileNotFoundError:
            return  # renamed into place meanwhile: it is found again
        except RubbishError as error:
            self._discard(path, str(error))
            return
        if name.startswith("."):
            if not 0 <= time.time() - written_at < UNFINISHED_SECONDS_MAX:
                self._discard(path, "left unfinished by a hook that was killed")
            return
        try:
            record = _parse(text, written_at)
        except RubbishError as error:
            self._discard(path, str(error))
            return
        if isinstance(record, Gone):
            path.unlink(missing_ok=True)
            self._on_gone(record)
            return
        log.warning("job_refused", extra=fields(job=record.job_id, reason=record.reason))
        self._waiting.add(name)
        self._put(record, lambda error: self._settled(name, error))

    def _settled(self, name: str, error: str | None) -> None:
        """The control plane has the fact, or will never take it: the file has served."""
        if error is not None:
            log.error("refusal_not_taken", extra=fields(record=name, refused_with=error))
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as problem:
            log.error("record_not_removed", extra=fields(record=name, reason=problem))
            return  # known as waiting: it is not told again in this life
        self._waiting.discard(name)

    def _discard(self, path: Path, why: str) -> None:
        self._rubbish += 1
        self._last_rubbish = f"{path.name[:80]!r}: {why}"
        log.warning("record_discarded", extra=fields(record=path.name[:80], reason=why))
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self._waiting.add(path.name)  # a directory, say: looked at once, and named in `problems`

    def _trim_log(self) -> None:
        try:
            if self._log.stat().st_size > LOG_BYTES_MAX:
                self._log.replace(self._log.with_suffix(".log.old"))
        except FileNotFoundError:
            pass


def _read(path: Path) -> tuple[str, float]:
    """Text, and when it was written. Raises RubbishError, FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RubbishError(f"cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RubbishError("not a plain file")
        content = os.read(descriptor, RECORD_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > RECORD_BYTES_MAX:
        raise RubbishError(f"longer than {RECORD_BYTES_MAX} bytes")
    return content.decode("ascii", "replace"), status.st_mtime


def _parse(text: str, written_at: float) -> JobRefused | Gone:
    """`written_at` rather than the hook's own whole seconds. Raises RubbishError."""
    kind, _, rest = text.partition(" ")
    words = rest.split(maxsplit=3)
    if kind not in ("refused", "gone") or len(words) < 3 or not text.endswith("\n"):
        raise RubbishError("not a record")
    job_id, attempt = _number(words[0]), None if words[1] == "-" else _number(words[1])
    if kind == "gone":
        return Gone(job_id, written_at)
    reason = words[3].strip() if len(words) > 3 else ""
    return JobRefused(
        job_id=job_id, at=round(written_at, 3), reason=reason[:TEXT_CHARACTERS_MAX], restart_count=attempt
    )


def _number(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= NUMBER_DIGITS_MAX and int(word) < 2**31):
        raise RubbishError(f"{word[:20]!r} is no number")
    return int(word)
