"""Follows the kernel log: /dev/kmsg, or a plain file of the same records where there is no /dev/kmsg.

Both sources are read from their beginning: what the driver logged before the agent started counts too, and the control
plane recognises a repeated record by its boot id and sequence. No error ends the reading; what could not be read is
counted and listed in `problems`.

Besides the driver's lines about GPUs the agent passes on what the control plane asks for by a policy, in bounds: a part
that fails writes the same line a thousand times.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from understudy_agent.sample.kernel_record import RecordError, asked_for, parse_record
from understudy_wire.facts import KernelEvent, KernelLogPolicy, KernelPattern
from understudy_wire.kernel_line import is_about_a_device

POLL_SECONDS = 0.05
RECORDS_PER_READ_MAX = 1000
RECORD_BYTES_MAX = 65_536
CHUNK_BYTES = 1 << 20

LOOK_SECONDS = 30.0
"""/dev/kmsg is read at this interval also when epoll reports nothing: seeking does not make it readable."""

LINES_OF_A_PATTERN_MAX = 20
LINES_OF_A_PATTERN_SECONDS = 600.0
"""Lines of one pattern are passed on within this time of the log; the others are counted."""


class Source(Protocol):
    """Neither method blocks or raises OSError."""

    def read_lines(self) -> list[str]:
        """The new complete lines, a few thousand at most."""
        ...

    def problems(self) -> list[str]: ...

    def rewind(self) -> None:
        """The next lines are the oldest that are left."""
        ...

    def descriptor(self) -> int | None:
        """A file descriptor that becomes readable with new lines, or None when the caller has to poll."""
        ...

    def close(self) -> None: ...


class DeviceSource:
    """/dev/kmsg: every read(2) returns one record."""

    def __init__(self, path: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        """`read` is os.read; a test replaces it."""
        self._path = path
        self._read = read
        self._overruns = 0
        self._error = ""
        self._descriptor: int | None = None
        self._open()

    def read_lines(self) -> list[str]:
        lines: list[str] = []
        if self._descriptor is None:
            self._open()
        while self._descriptor is not None and len(lines) < RECORDS_PER_READ_MAX:
            try:
                record = self._read(self._descriptor, RECORD_BYTES_MAX)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The kernel overwrote records before they were read; the next read returns the oldest one left.
                self._overruns += 1
                continue
            except OSError as error:
                self._fail(error)
                break
            if not record:
                break
            lines.append(record.decode("utf-8", "replace").split("\n", 1)[0])
        return lines

    def problems(self) -> list[str]:
        found = [self._error] if self._error else []
        if self._overruns:
            found.append(f"{self._path}: records were overwritten unread (overruns: {self._overruns})")
        return found

    def rewind(self) -> None:
        try:
            if self._descriptor is not None:
                os.lseek(self._descriptor, 0, os.SEEK_SET)
        except OSError as error:
            self._fail(error)  # the next reading opens it again

    def descriptor(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._error = ""
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._error = f"{self._path}: cannot be read: {error.strerror}"
        self.close()


class FileSource:
    """A growing file of records, which may be rotated, truncated, or missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._inode = 0
        self._offset = 0
        self._partial = b""
        self._oversized = 0
        self._error = ""
        self._read_up_to: tuple[int, int, int, int] | None = None  # the state of the file when all of it was read

    def read_lines(self) -> list[str]:
        try:
            return self._read_if_changed()
        except OSError as error:
            self._error = f"{self._path}: cannot be read: {error.strerror}"
            self.close()
            return []

    def problems(self) -> list[str]:
        found = [self._error] if self._error else []
        if self._oversized:
            found.append(f"{self._path}: {self._oversized} lines above {RECORD_BYTES_MAX} bytes were skipped")
        return found

    def rewind(self) -> None:
        self.close()

    def descriptor(self) -> int | None:
        return None  # epoll does not support regular files

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._read_up_to = None

    def _read_if_changed(self) -> list[str]:
        """Called many times a second, mostly without a new line to read."""
        now = self._status()
        if now is not None and now == self._read_up_to:
            return []
        lines = self._read_lines()
        all_read = now is not None and now[1:3] == (self._inode, self._offset)
        self._read_up_to = now if all_read else None
        return lines

    def _status(self) -> tuple[int, int, int, int] | None:
        """None: the file does not exist at the moment."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _read_lines(self) -> list[str]:
        descriptor = self._open() if self._descriptor is None else self._descriptor
        lines = self._read_open_file(descriptor)
        # The last lines of a file that was moved away are read above, before the next file is opened.
        if not lines and self._path.stat().st_ino != self._inode:
            self.close()
            lines = self._read_open_file(self._open())
        self._error = ""
        return lines

    def _open(self) -> int:
        self._descriptor = descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._inode = os.fstat(descriptor).st_ino
        self._offset, self._partial = 0, b""
        return descriptor

    def _read_open_file(self, descriptor: int) -> list[str]:
        if os.fstat(descriptor).st_size < self._offset:
            self._offset, self._partial = 0, b""
        chunk = os.pread(descriptor, CHUNK_BYTES, self._offset)
        self._offset += len(chunk)
        return self._take(chunk)

    def _take(self, chunk: bytes) -> list[str]:
        """The complete lines; the text after the last newline waits for the rest of its line."""
        *complete, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > RECORD_BYTES_MAX:
            self._oversized += 1
            self._partial = b""
        return [line.decode("utf-8", "replace") for line in complete]


class KernelLog:
    """Turns the lines of a source into events."""

    def __init__(self, source: Source, boot_id: str) -> None:
        self._source = source
        self._boot_id = boot_id
        self._malformed = 0
        self._last_malformed = ""
        self._policy: KernelLogPolicy | None = None
        self._unreadable = ""
        self._patterns_before: tuple[KernelPattern, ...] = ()
        self._read_up_to = -1
        """Sequence of the last record that was read."""
        self._reread_up_to = -1
        """... before the source was rewound: what is older was passed on already, unless only the new policy asks for
        it.
        """
        self._is_live = False
        """All that was in the log was read: what comes now was logged now."""
        self._passed_on: dict[KernelPattern, deque[float]] = {}
        self._held_back: dict[KernelPattern, int] = {}

    @property
    def policy_version(self) -> str:
        """Empty: no policy came yet."""
        return self._policy.version if self._policy is not None else ""

    def follow_policy(self, policy: KernelLogPolicy) -> None:
        """Passes on what `policy` asks for, from the beginning of the log on."""
        if policy == self._policy:
            return
        try:
            for pattern in policy.patterns:
                re.compile(pattern.form)
        except re.error as error:
            self._unreadable = f"kernel log: policy {policy.version} of the control plane cannot be read: {error}"
            return
        self._unreadable = ""
        self._patterns_before = self._policy.patterns if self._policy is not None else ()
        self._policy = policy
        self._passed_on.clear()
        self._held_back.clear()
        self._reread_up_to = self._read_up_to
        self._is_live = False
        self._source.rewind()

    def read(self) -> list[KernelEvent]:
        return self._parse(self._source.read_lines())

    def problems(self) -> list[str]:
        found = self._source.problems()
        if self._unreadable:
            found.append(self._unreadable)
        if self._malformed:
            found.append(
                f"{self._malformed} lines of the kernel log were not records; the last: {self._last_malformed}"
            )
        for pattern, count in self._held_back.items():
            found.append(f"kernel log: {count} lines that begin with {pattern.prefixes[0]!r} were too many to send")
        return found

    async def follow(self, deliver: Callable[[list[KernelEvent]], None]) -> None:
        """Delivers events as they come, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                lines = self._source.read_lines()
                events = self._parse(lines)
                if events:
                    deliver(events)
                if lines:
                    await asyncio.sleep(0)  # a full buffer at the start must not hold up everything else
                    continue
                descriptor = self._source.descriptor()
                if descriptor is None:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    await _readable(loop, descriptor)
        finally:
            self._source.close()

    def _parse(self, lines: list[str]) -> list[KernelEvent]:
        events: list[KernelEvent] = []
        if not lines:
            self._is_live = True
            return events
        patterns = self._policy.patterns if self._policy is not None else ()
        now = time.time()
        # The clock of records starts at zero when the machine boots, and stops while it is suspended. It is not kept in
        # time: within a month it is wrong by a minute. So it counts only for what was logged before it could be read.
        booted_at = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        for line in lines:
            try:
                event = parse_record(line, self._boot_id, booted_at, patterns)
            except RecordError as error:
                self._malformed += 1
                self._last_malformed = str(error)
                continue
            if event is not None and self._is_new(event, patterns):
                events.append(msgspec.structs.replace(event, at=now) if self._is_live else event)
        return events

    def _is_new(self, event: KernelEvent, patterns: tuple[KernelPattern, ...]) -> bool:
        self._read_up_to = max(self._read_up_to, event.sequence)
        again = event.sequence <= self._reread_up_to
        if is_about_a_device(event.text):
            return not again
        if again and asked_for(event.text, self._patterns_before) is not None:
            return False
        pattern = asked_for(event.text, patterns)
        if pattern is None:
            return False
        recent = self._passed_on.setdefault(pattern, deque(maxlen=LINES_OF_A_PATTERN_MAX))
        if len(recent) == LINES_OF_A_PATTERN_MAX and event.at - recent[0] < LINES_OF_A_PATTERN_SECONDS:
            self._held_back[pattern] = self._held_back.get(pattern, 0) + 1
            return False
        recent.append(event.at)
        return True


def open_source(path: Path) -> Source:
    """The right reader for `path`: a character device behaves as /dev/kmsg does, anything else is a file."""
    try:
        device = stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        device = False
    return DeviceSource(path) if device else FileSource(path)


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a device that epoll does not support, such as /dev/null
        await asyncio.sleep(POLL_SECONDS)
        return
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await ready.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(descriptor)
