"""What a keeper holds: parts of saves, within limits, until a newer save is whole or the job is over.

A save is whole when every rank's part of it is held; the ranks agree on that before they begin the next one, and name
the last whole one with each part. So at most two saves of a rank are held: the last whole one and the one after it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

PARTS_OF_USER_MAX = 2048
PLACES = 2
MADV_POPULATE_WRITE = 23
"""Python 3.11 has no name for it."""


class Save(NamedTuple):
    """One checkpoint in memory. Later attempts come after earlier ones, whatever their steps."""

    restart_count: int
    launch: int
    step: int

    @property
    def attempt(self) -> tuple[int, int]:
        return self.restart_count, self.launch


class Key(NamedTuple):
    user_id: int
    job_id: int
    save: Save
    rank: int


class NoRoomError(Exception):
    """The part is not held; the message has the cause."""


class AlreadyTakenError(NoRoomError):
    """Another thread takes it now, or it is here."""


@dataclass(slots=True, eq=False)
class Part:
    key: Key
    world_size: int
    checksum: str
    """The rank made it, and verifies it when it reads the part again."""
    length: int
    content: mmap.mmap
    is_whole: bool = False
    """All of its bytes are here. Until then nothing reads it."""
    places: int = 1
    """Number of keepers that have it."""
    restored_by: set[tuple[int, int]] = field(default_factory=set)
    """Attempts of the job that went on from its save."""
    used_at: float = 0.0
    taken_at: float = 0.0
    """Seconds since the epoch."""
    blocked_seconds: float | None = None
    """Time for which its rank's training was held up; None: not known, as of a copy."""
    readers: int = 1
    """And the thread that fills it."""


def get_pages(memory: mmap.mmap, at: int, count: int) -> None:
    """Gets pages from the kernel before they are written: all at once costs half of what one after the other does."""
    with contextlib.suppress(OSError):  # a kernel before 5.14
        memory.madvise(MADV_POPULATE_WRITE, at, min(count, len(memory) - at))


@dataclass(slots=True)
class Counts:
    """Counted since the keeper's start."""

    bytes_taken: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    refused: int = 0


class Store:
    """Safe from any thread."""

    def __init__(self, bytes_max: int, bytes_of_user_max: int, now: Callable[[], float] = time.monotonic) -> None:
        self.bytes_max, self._bytes_of_user_max, self._now = bytes_max, bytes_of_user_max, now
        self.counts = Counts()
        self.bytes_held = 0
        self._bytes_of_user: dict[int, int] = {}
        self._parts: dict[Key, Part] = {}
        self._leaving: set[Part] = set()
        """Parts that are dropped while a reader still has them: their memory is not free yet."""
        self._attempts: dict[tuple[int, int], tuple[int, int]] = {}
        self._wholes: dict[tuple[int, int], Save] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)

    def begin_attempt(self, user_id: int, job_id: int, attempt: tuple[int, int]) -> None:
        """A rank of it saves: processes of earlier attempts that are left do not any more. Raises NoRoomError."""
        with self._lock:
            if attempt < self._attempts.get((user_id, job_id), attempt):
                raise self._refused("a later attempt of the job has begun")
            self._attempts[user_id, job_id] = attempt

    def reserve(self, key: Key, world_size: int, length: int, checksum: str, whole: Save | None) -> Part:
        """Memory for a part; finish() or give_up() must follow. Drops what the rank's new part makes useless: what is
        older, but for `whole`, the last save that the gang can restore. Its memory is used again where it is as long:
        to get new memory from the kernel takes longer than to copy into what is there. Raises NoRoomError.
        """
        with self._lock:
            job = (key.user_id, key.job_id)
            if not 0 < length <= self.bytes_max:
                raise self._refused(f"a part of {length} bytes; the keeper's limit is {self.bytes_max}")
            memory = None
            for part in [one for one in self._of_rank(key) if whole != one.key.save < key.save and one.is_whole]:
                if memory is None and part.length == length and not part.readers:
                    memory = part.content
                self._drop(part, close=part.content is not memory)
            if key in self._parts:
                raise AlreadyTakenError("this part is being taken already, or is the one to restore")
            self._check_room(key.user_id, length)
            if whole is not None:
                self._wholes[job] = whole
            memory = memory or mmap.mmap(-1, length, mmap.MAP_PRIVATE)
            part = Part(key, world_size, checksum, length, memory, used_at=self._now())
            self._parts[key] = part
            self._count(part, length)
            return part

    def finish(self, part: Part, places: int = 1) -> bool:
        """All bytes are here. Whether it is held: its job may be over meanwhile."""
        with self._lock:
            part.is_whole, part.places, part.used_at, part.taken_at = True, places, self._now(), time.time()
            self._release(part)
            self._news.notify_all()
            return part.key in self._parts

    def give_up(self, part: Part) -> None:
        """Its bytes did not come."""
        with self._lock:
            self._drop(part)
            self._release(part)

    @contextlib.contextmanager
    def reading(self, key: Key) -> Iterator[Part | None]:
        """The part, whose memory stays within this block; None: it is not held."""
        with self._lock:
            part = self._parts.get(key)
            if part is not None and not part.is_whole:
                part = None
            if part is not None:
                part.readers += 1
                part.used_at = self._now()
        try:
            yield part
        finally:
            if part is not None:
                with self._lock:
                    self._release(part)

    def saves(self) -> list[dict[str, object]]:
        """What is held of each save, in the order of jobs, newest first."""
        parts: dict[tuple[int, int, Save], list[Part]] = {}
        with self._lock:
            for part in self._parts.values():
                if part.is_whole:
                    parts.setdefault((part.key.user_id, part.key.job_id, part.key.save), []).append(part)
            return [_described_save(of_save, parts[of_save]) for of_save in sorted(parts, reverse=True)]

    def parts_of(self, user_id: int, job_id: int) -> list[Part]:
        with self._lock:
            return self._parts_of(user_id, job_id)

    def whole_of(self, user_id: int, job_id: int) -> Save | None:
        """The last save of the gang that is known to be whole."""
        with self._lock:
            return self._wholes.get((user_id, job_id))

    def await_parts(self, user_id: int, job_id: int, known: Collection[Key], seconds: float) -> list[Part]:
        """Parts that are not known, as soon as there is one."""
        with self._lock:
            found: list[Part] = []

            def look() -> bool:
                found[:] = [one for one in self._parts_of(user_id, job_id) if one.key not in known]
                return bool(found)

            self._news.wait_for(look, seconds)
            return found

    def note_copy(self, key: Key) -> None:
        """Another keeper has all of it."""
        with self._lock:
            part = self._parts.get(key)
            if part is not None:
                part.places = PLACES
                self._news.notify_all()

    def await_copy(self, key: Key, seconds: float) -> int:
        """Number of keepers that have the part; 0: it is not held."""
        with self._lock:

            def look() -> bool:
                part = self._parts.get(key)
                return part is None or part.places >= PLACES

            self._news.wait_for(look, seconds)
            part = self._parts.get(key)
            return 0 if part is None else part.places

    def note_restored(self, user_id: int, job_id: int, save: Save, attempt: tuple[int, int]) -> None:
        with self._lock:
            for part in self._parts_of(user_id, job_id):
                if part.key.save == save:
                    part.restored_by.add(attempt)

    def free(self, user_id: int, job_id: int) -> None:
        """The job is over: all of its parts."""
        with self._lock:
            for part in [one for one in self._parts.values() if one.key[:2] == (user_id, job_id)]:
                self._drop(part)
            self._attempts.pop((user_id, job_id), None)
            self._wholes.pop((user_id, job_id), None)
            self._news.notify_all()

    def expire(self, seconds: float, in_use: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
        """Frees the jobs that nothing has used for that time; `in_use` are users and jobs with a process here."""
        with self._lock:
            used_at: dict[tuple[int, int], float] = {}
            for part in self._parts.values():
                job = (part.key.user_id, part.key.job_id)
                used_at[job] = max(part.used_at, used_at.get(job, 0.0))
                if job in in_use:
                    part.used_at = self._now()
            for job in self._attempts.keys() - used_at.keys():
                self._attempts.pop(job, None)
                self._wholes.pop(job, None)
            expired = [job for job, at in used_at.items() if job not in in_use and self._now() - at > seconds]
        for user_id, job_id in expired:
            self.free(user_id, job_id)
        return expired

    def jobs(self) -> list[tuple[int, int]]:
        with self._lock:
            return sorted({(key.user_id, key.job_id) for key in self._parts})

    def _parts_of(self, user_id: int, job_id: int) -> list[Part]:
        return [one for one in self._parts.values() if one.is_whole and one.key[:2] == (user_id, job_id)]

    def _of_rank(self, key: Key) -> list[Part]:
        who = (key.user_id, key.job_id, key.rank)
        return [one for one in self._parts.values() if (one.key.user_id, one.key.job_id, one.key.rank) == who]

    def _check_room(self, user_id: int, length: int) -> None:
        """Raises NoRoomError. No part of another user or job goes: it may be the last one."""
        held = self._bytes_of_user.get(user_id, 0)
        if held + length > self._bytes_of_user_max:
            raise self._refused(f"user {user_id} has {held} bytes here; at most {self._bytes_of_user_max} are held")
        if self.bytes_held + length > self.bytes_max:
            raise self._refused(f"{self.bytes_held} of {self.bytes_max} bytes are taken")
        if sum(key.user_id == user_id for key in self._parts) >= PARTS_OF_USER_MAX:
            raise self._refused(f"user {user_id} has {PARTS_OF_USER_MAX} parts here")

    def _refused(self, why: str) -> NoRoomError:
        self.counts.refused += 1
        return NoRoomError(why)

    def _drop(self, part: Part, close: bool = True) -> None:
        if self._parts.get(part.key) is not part:
            return
        del self._parts[part.key]
        if part.readers:
            self._leaving.add(part)
        else:
            self._count(part, -part.length, close)
        self._news.notify_all()

    def _count(self, part: Part, length: int, close: bool = True) -> None:
        self.bytes_held += length
        user_id = part.key.user_id
        self._bytes_of_user[user_id] = self._bytes_of_user.get(user_id, 0) + length
        if not self._bytes_of_user[user_id]:
            del self._bytes_of_user[user_id]
        if length < 0 and close:
            with contextlib.suppress(BufferError):  # a view of it, which goes with its thread's next line
                part.content.close()

    def _release(self, part: Part) -> None:
        part.readers -= 1
        if part in self._leaving and not part.readers:
            self._leaving.discard(part)
            self._count(part, -part.length)


def _described_save(of_save: tuple[int, int, Save], parts: list[Part]) -> dict[str, object]:
    user_id, job_id, save = of_save
    blocked = [one.blocked_seconds for one in parts if one.blocked_seconds is not None]
    return {
        "user_id": user_id,
        "job_id": job_id,
        "save": list(save),
        "world_size": parts[0].world_size,
        "ranks": sorted(one.key.rank for one in parts),
        "bytes": sum(one.length for one in parts),
        "at": max(one.taken_at for one in parts),
        "restored": max(len(one.restored_by) for one in parts),
        "blocked_seconds": max(blocked, default=None),
    }
