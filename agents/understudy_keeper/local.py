"""What a rank asks of the keeper on its node, over a unix socket.

A process of any user may connect. Everything is bounded, and a user sees and uses nothing but his own parts: the kernel
names him (SO_PEERCRED). A part comes as a descriptor of memory, never as a path, and the keeper copies it: what it
holds is its own memory, which no user can change, and which counts against its own limit.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from understudy_agent.log import fields, log
from understudy_keeper.copies import (
    ID_MAX,
    LENGTH_MAX,
    RANK_MAX,
    Copier,
    Ward,
    described,
    key_of,
    save_of,
    send_part,
)
from understudy_keeper.places import Room
from understudy_keeper.store import Key, NoRoomError, Store, get_pages
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import BLOCK_BYTES, Frames, Message, number, text

COPY_SECONDS_MAX = 600
BLOCKED_SECONDS_MAX = 86_400.0
WARDS_MAX = 4
"""Keepers that one connection follows: a node copies from one other as a rule."""
WARDS_IN_ALL_MAX = 512
WARDS_OF_USER_MAX = 64
"""Each has a thread here, and a connection to the keeper of another node."""
WARD_RANKS_MAX = 256


@dataclass(slots=True)
class LocalKeeper:
    store: Store
    copier: Copier
    address: str
    """This keeper's address, for others."""
    in_use: dict[object, tuple[int, int]] = field(default_factory=dict)
    """User and job of each connection."""
    wards: Room = field(default_factory=lambda: Room(WARDS_IN_ALL_MAX, WARDS_OF_USER_MAX))


class Conversation:
    """One process and its questions."""

    def __init__(self, keeper: LocalKeeper, frames: Frames, user_id: int) -> None:
        self._keeper, self._frames, self._user_id = keeper, frames, user_id
        self._store = keeper.store
        self._ended = threading.Event()
        self._followed = 0
        self._kinds: dict[str, Callable[[Message, int], Message | None]] = {
            "hello": self._hello,
            "put": self._put,
            "copied": self._copied,
            "list": self._list,
            "get": self._get,
            "follow": self._follow,
            "restored": self._restored,
            "free": self._free,
        }

    def run(self) -> None:
        """Ends when the process closes the connection. Raises ProtocolError and OSError."""
        try:
            while True:
                try:
                    message = self._frames.receive(with_descriptor=True)
                except ClosedError:
                    return
                try:
                    answer = self._answer(message)
                except NoRoomError as error:
                    answer = {"error": str(error)}
                if answer is not None:
                    self._frames.send(answer)
        finally:
            self._ended.set()
            self._keeper.in_use.pop(self, None)

    def _answer(self, message: Message) -> Message | None:
        """None: it is answered. Raises ProtocolError, NoRoomError and OSError."""
        kind = message.get("type")
        if kind == "status":
            return self._status()
        job_id = number(message, "job_id", ID_MAX)
        self._keeper.in_use[self] = (self._user_id, job_id)
        answer = self._kinds.get(str(kind))
        if answer is None:
            return {"error": f"this keeper does not know {str(kind)[:40]!r}"}
        return answer(message, job_id)

    def _hello(self, _message: Message, _job_id: int) -> Message:
        return {"keeper": self._keeper.address}

    def _copied(self, message: Message, _job_id: int) -> Message:
        seconds = number(message, "seconds", COPY_SECONDS_MAX)
        return {"places": self._store.await_copy(key_of(message, self._user_id), seconds)}

    def _list(self, _message: Message, job_id: int) -> Message:
        return {"parts": [described(one) for one in self._store.parts_of(self._user_id, job_id)]}

    def _get(self, message: Message, _job_id: int) -> Message | None:
        """Asks the keeper that the rank names, where this one does not have the part."""
        key = key_of(message, self._user_id)
        with self._store.reading(key) as held:
            is_here = held is not None
        if is_here or "keeper" not in message:
            send_part(self._frames, self._store, key)
            return None
        return self._fetch(message, key)

    def _restored(self, message: Message, job_id: int) -> Message:
        attempt = (number(message, "restart_count"), number(message, "launch"))
        self._store.note_restored(self._user_id, job_id, save_of(message), attempt)
        return {}

    def _free(self, message: Message, job_id: int) -> Message:
        """Root may name another user: the agent does, for jobs that have ended."""
        is_root = self._user_id in (0, os.geteuid())
        user_id = number(message, "user_id", ID_MAX) if is_root and "user_id" in message else self._user_id
        self._store.free(user_id, job_id)
        return {}

    def _put(self, message: Message, _job_id: int) -> Message:
        key = key_of(message, self._user_id)
        world_size, length = number(message, "world_size", RANK_MAX), number(message, "length", LENGTH_MAX)
        if key.rank >= world_size:
            raise ProtocolError(f"rank {key.rank} cannot be in a world of {world_size}")
        descriptor = self._frames.take_descriptor()
        if descriptor is None:
            raise ProtocolError("a part comes with a descriptor of its memory")
        try:
            _check_memory(descriptor, length)
            whole = save_of(message, "whole") if message.get("whole") is not None else None
            self._store.begin_attempt(key.user_id, key.job_id, key.save.attempt)
            part = self._store.reserve(key, world_size, length, text(message, "checksum"), whole)
            part.blocked_seconds = _seconds(message.get("blocked_seconds"))
            try:
                _copy(descriptor, part.content)
            except BaseException:
                self._store.give_up(part)
                raise
        finally:
            os.close(descriptor)
        self._store.counts.bytes_taken += length
        return {"held": self._store.finish(part)}

    def _fetch(self, message: Message, key: Key) -> Message | None:
        address = text(message, "keeper")
        try:
            self._keeper.copier.fetch(key, message, address, self._frames)
        except (OSError, ProtocolError, ClosedError, subprocess.SubprocessError) as error:
            log.warning("keeper_not_reached", extra=fields(address=address, job=key.job_id, error=error))
            return {"error": f"{address}: {error}"[:500]}
        return None

    def _follow(self, message: Message, job_id: int) -> Message:
        ranks = message.get("ranks")
        if not isinstance(ranks, list) or len(ranks) > WARD_RANKS_MAX or not all(type(one) is int for one in ranks):
            raise ProtocolError(f"ranks are at most {WARD_RANKS_MAX} numbers")
        if self._followed >= WARDS_MAX:
            return {"error": f"a connection follows at most {WARDS_MAX} keepers"}
        ward = Ward(self._user_id, job_id, text(message, "keeper"), frozenset(ranks))
        if not self._keeper.wards.enter(self._user_id):
            return {"error": f"this keeper follows {WARDS_OF_USER_MAX} others for a user, {WARDS_IN_ALL_MAX} in all"}
        self._followed += 1
        try:
            threading.Thread(target=self._follow_ward, args=(ward,), name="understudy-ward", daemon=True).start()
        except RuntimeError:  # no threads left
            self._keeper.wards.leave(self._user_id)
            raise NoRoomError("this keeper has no thread left") from None
        return {}

    def _follow_ward(self, ward: Ward) -> None:
        try:
            self._keeper.copier.follow(ward, self._ended)
        finally:
            self._keeper.wards.leave(ward.user_id)

    def _status(self) -> Message:
        """Only root and the keeper's own user get it: the agent."""
        if self._user_id not in (0, os.geteuid()):
            return {"error": "only root may ask for this"}
        counts = self._store.counts
        return {
            "bytes_held": self._store.bytes_held,
            "bytes_max": self._store.bytes_max,
            "bytes_taken": counts.bytes_taken,
            "bytes_received": counts.bytes_received,
            "bytes_sent": counts.bytes_sent,
            "refused": counts.refused,
            "jobs": [list(job) for job in self._store.jobs()],
            "saves": self._store.saves(),
        }


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= BLOCKED_SECONDS_MAX else None


def _check_memory(descriptor: int, length: int) -> None:
    """It is memory, so that no read of it waits for a disk, a network or another process. Raises ProtocolError."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("the descriptor is none of memory (memfd_create)") from error
    if os.fstat(descriptor).st_size < length:
        raise ProtocolError(f"the descriptor has fewer than {length} bytes")


def _copy(descriptor: int, memory: mmap.mmap) -> None:
    """Raises ProtocolError where the rank cuts it meanwhile."""
    with memoryview(memory) as content:
        for at in range(0, len(content), BLOCK_BYTES):
            with content[at : at + BLOCK_BYTES] as piece:
                get_pages(memory, at, len(piece))
                if os.preadv(descriptor, [piece], at) != len(piece):
                    raise ProtocolError("the memory became shorter while it was copied")
