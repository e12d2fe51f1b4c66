"""What this keeper gives to keepers of other nodes, and takes from them, once both have proven themselves (`proof.py`).

The ranks of a gang agree which keeper copies from which. A keeper never sends a part by itself: another one asks for
it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from understudy_agent.log import fields, log
from understudy_keeper.proof import Identity, connect
from understudy_keeper.store import PLACES, AlreadyTakenError, Key, NoRoomError, Part, Save, Store, get_pages
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import BLOCK_BYTES, Frames, Message, number, text

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 120.0
WAIT_SECONDS = 5
"""Time for a new part, in one question to another keeper."""
AGAIN_SECONDS = (1.0, 2.0, 5.0, 15.0)
KNOWN_MAX = 1024
RANK_MAX = 2**31 - 1
ID_MAX = 2**32 - 1
LENGTH_MAX = 2**46
PIECE_BYTES = 16 << 20
"""Bytes that a connection fetches at once, where there are several."""


def save_of(message: Message, name: str = "save") -> Save:
    """Raises ProtocolError."""
    value = message.get(name)
    numbers = value if isinstance(value, list) and len(value) == 3 else [None]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= 2**53 for one in numbers):
        raise ProtocolError(f"{name} is {str(value)[:60]!r}, and not restart count, launch and step")
    return Save(*numbers)


def key_of(message: Message, user_id: int) -> Key:
    """Raises ProtocolError."""
    job_id, rank = number(message, "job_id", ID_MAX), number(message, "rank", RANK_MAX)
    return Key(user_id, job_id, save_of(message), rank)


def described(part: Part) -> dict[str, object]:
    return {
        "save": list(part.key.save),
        "rank": part.key.rank,
        "world_size": part.world_size,
        "length": part.length,
        "checksum": part.checksum,
        "restored": len(part.restored_by),
    }


class Pace:
    """Limit of bytes a second, of all copies together; what is not used is not saved up."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def note(self, count: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self._rate
            ahead = self._free_at - now
        if ahead > 0.02:
            time.sleep(ahead)


def give(frames: Frames, store: Store, message: Message) -> None:
    """Answers another keeper, whose first message this is, until it closes the connection. Raises ProtocolError,
    ClosedError and OSError.
    """
    frames.link.settimeout(IDLE_SECONDS)
    while True:
        user_id, job_id = number(message, "user_id", ID_MAX), number(message, "job_id", ID_MAX)
        kind = message.get("type")
        if kind == "list":
            frames.send(_list(message, store, user_id, job_id))
        elif kind == "get":
            at, count = number(message, "at", LENGTH_MAX), number(message, "count", LENGTH_MAX)
            send_part(frames, store, key_of(message, user_id), at, count)
        elif kind == "have":
            store.note_copy(key_of(message, user_id))
        else:
            frames.send({"error": f"this keeper does not know {str(kind)[:40]!r}"})
        message = frames.receive()


def send_part(frames: Frames, store: Store, key: Key, at: int = 0, count: int = LENGTH_MAX) -> None:
    """Sends as many bytes of it, from there on, as far as it goes."""
    with store.reading(key) as part:
        if part is None:
            frames.send({"error": "this part is not held"})
            return
        frames.send({"type": "part", **described(part)})
        with memoryview(part.content) as content, content[at : at + count] as asked:
            frames.send_bytes(asked)
            store.counts.bytes_sent += len(asked)


def _list(message: Message, store: Store, user_id: int, job_id: int) -> dict[str, object]:
    named = _objects(message, "known")
    known = {Key(user_id, job_id, save_of(one), number(one, "rank", RANK_MAX)) for one in named}
    found = store.await_parts(user_id, job_id, known, number(message, "wait_seconds", WAIT_SECONDS))
    whole = store.whole_of(user_id, job_id)
    return {
        "parts": [described(one) for one in sorted(found, key=lambda one: one.key.save)],
        "whole": list(whole) if whole else None,
    }


def ask(frames: Frames, part: Part, at: int, count: int) -> None:
    """Asks for a piece of it, which receive() takes. Raises NoRoomError, ProtocolError and OSError."""
    key = part.key
    of_part: Message = {"user_id": key.user_id, "job_id": key.job_id, "save": list(key.save), "rank": key.rank}
    frames.send({"type": "get", **of_part, "at": at, "count": count})
    answer = frames.receive()
    if answer.get("error"):
        raise NoRoomError(f"the other keeper: {str(answer['error'])[:500]}")
    if (answer.get("length"), answer.get("checksum")) != (part.length, part.checksum):
        raise ProtocolError("the other keeper gives another part than it named")


def receive(frames: Frames, part: Part, at: int, count: int) -> Generator[int, None, None]:
    """Bytes that have come, block by block. Raises OSError."""
    with memoryview(part.content) as content, content[at : at + count] as piece:
        for begin in range(0, count, BLOCK_BYTES):
            with piece[begin : begin + BLOCK_BYTES] as block:
                get_pages(part.content, at + begin, len(block))
                frames.receive_into(block)
                yield len(block)


class Pieces:
    """A part that comes by several connections, each of which fetches the next piece."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._next = self._first = 0
        self._come: Counter[int] = Counter()
        self._failed: BaseException | None = None
        self._news = threading.Condition()

    def next(self) -> tuple[int, int]:
        """Its place and length; 0: there is none left."""
        with self._news:
            at = self._next
            self._next = min(at + PIECE_BYTES, self._length)
            return at, 0 if self._failed else self._next - at

    def receive(self, frames: Frames, part: Part, first: tuple[int, int] | None = None) -> None:
        """Piece after piece, the first one as it was asked for. What fails is raised by arrived()."""
        at, count = first or (0, 0)
        try:
            if first is None:
                at, count = self._asked(frames, part)
            while count:
                with contextlib.closing(receive(frames, part, at, count)) as blocks:
                    for come in blocks:
                        self._note(at, come)
                at, count = self._asked(frames, part)
        except BaseException as error:  # noqa: BLE001 - it is the other thread's
            self.fail(error)

    def arrived(self) -> Iterator[tuple[int, int]]:
        """Place and length of what has come next, until all has. Raises what a connection has failed with."""
        given = 0
        while given < self._length:
            with self._news:
                while (come := self._first + self._come[self._first]) <= given and self._failed is None:
                    self._news.wait()
                if self._failed is not None:
                    raise self._failed
            yield given, come - given
            given = come

    def fail(self, error: BaseException) -> None:
        with self._news:
            self._failed = self._failed or error
            self._news.notify_all()

    def _asked(self, frames: Frames, part: Part) -> tuple[int, int]:
        at, count = self.next()
        if count:
            ask(frames, part, at, count)
        return at, count

    def _note(self, at: int, count: int) -> None:
        """Raises what another connection has failed with: then this one is of no use."""
        with self._news:
            if self._failed is not None:
                raise self._failed
            self._come[at] += count
            while self._first < self._length and self._come[self._first] >= PIECE_BYTES:
                self._first += PIECE_BYTES
            self._news.notify_all()


@dataclass(frozen=True, slots=True)
class Ward:
    """Ranks of one node, whose parts this keeper copies."""

    user_id: int
    job_id: int
    address: str
    ranks: frozenset[int]


class Copier:
    """Takes parts from other keepers. `connections`: those of all ranks together that fetch at the same time; each rank
    has one at least.
    """

    def __init__(
        self, store: Store, identity: Identity, pace: Pace, wait_seconds: int = WAIT_SECONDS, connections: int = 1
    ) -> None:
        self._store, self._identity, self._pace, self._wait_seconds = store, identity, pace, wait_seconds
        self._connections, self._fetching, self._lock = connections, 0, threading.Lock()

    def fetch(self, key: Key, asked: Message, address: str, onward: Frames) -> None:
        """One part, for a rank that has lost it, as another keeper described it. The rank gets each piece as it comes.
        Raises ProtocolError, NoRoomError and OSError; the latter also where the rank has had the part's beginning.
        """
        with self._lock:
            more = max(self._connections - self._fetching - 1, 0)
            self._fetching += 1 + more
        try:
            with contextlib.closing(connect(address, self._identity, CONNECT_SECONDS)) as frames:
                frames.link.settimeout(IDLE_SECONDS)
                with self._taken(key, asked, key.save) as part:
                    if part is None:  # it has come meanwhile
                        send_part(onward, self._store, key)
                    else:
                        self._pull(frames, part, address, more, onward)
        finally:
            with self._lock:
                self._fetching -= 1 + more

    def follow(self, ward: Ward, ended: threading.Event) -> None:
        """Copies each new part of the ward until `ended`. Never raises."""
        failures = 0
        problem = ""
        while not ended.is_set():
            try:
                with contextlib.closing(connect(ward.address, self._identity, CONNECT_SECONDS)) as frames:
                    frames.link.settimeout(IDLE_SECONDS)
                    failures, problem = 0, ""
                    self._follow(frames, ward, ended)
            except (OSError, ProtocolError, ClosedError) as error:
                failures += 1
                if str(error) != problem:
                    problem = str(error)
                    log.warning("keeper_not_reached", extra=fields(address=ward.address, job=ward.job_id, error=error))
                ended.wait(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS)) - 1])

    def _follow(self, frames: Frames, ward: Ward, ended: threading.Event) -> None:
        seen: dict[Key, None] = {}
        while not ended.is_set():
            known: list[Message] = [{"save": list(key.save), "rank": key.rank} for key in seen]
            of_job: Message = {"user_id": ward.user_id, "job_id": ward.job_id}
            frames.send({"type": "list", **of_job, "known": known, "wait_seconds": self._wait_seconds})
            answer = frames.receive()
            whole = save_of(answer, "whole") if answer.get("whole") else None
            for one in _objects(answer, "parts"):
                key = key_of({**one, "job_id": ward.job_id}, ward.user_id)
                if ended.is_set():
                    return
                seen[key] = None
                if key.rank not in ward.ranks:
                    continue
                try:
                    self._take(frames, key, one, whole)
                except AlreadyTakenError:
                    continue
                except NoRoomError as error:
                    log.warning("copy_not_held", extra=fields(job=ward.job_id, rank=key.rank, reason=error))
                    continue
                frames.send({"type": "have", **of_job, "save": list(key.save), "rank": key.rank})
            while len(seen) > KNOWN_MAX:
                del seen[next(iter(seen))]

    def _take(self, frames: Frames, key: Key, asked: Message, whole: Save | None) -> None:
        with self._taken(key, asked, whole) as part:
            if part is not None:
                ask(frames, part, 0, part.length)
                for count in receive(frames, part, 0, part.length):
                    self._pace.note(count)

    @contextlib.contextmanager
    def _taken(self, key: Key, asked: Message, whole: Save | None) -> Iterator[Part | None]:
        """The part is filled in this block, and held after it; None: it is held already."""
        with self._store.reading(key) as held:
            is_here = held is not None
        if is_here:
            yield None
            return
        length, checksum = number(asked, "length", LENGTH_MAX), text(asked, "checksum")
        part = self._store.reserve(key, number(asked, "world_size", RANK_MAX), length, checksum, whole)
        try:
            yield part
        except BaseException:
            self._store.give_up(part)
            raise
        self._store.counts.bytes_received += length
        self._store.finish(part, places=PLACES)

    def _pull(self, frames: Frames, part: Part, address: str, more: int, onward: Frames) -> None:
        """Several connections fetch it: one core decrypts less than a network brings. The rank gets what has come, in
        its order, meanwhile.
        """
        pieces = Pieces(part.length)
        ask(frames, part, *(first := pieces.next()))
        onward.send({"type": "part", **described(part)})
        more = min(more, part.length // PIECE_BYTES)
        threads = [threading.Thread(target=self._pull_more, args=(part, address, pieces)) for _ in range(more)]
        threads.append(threading.Thread(target=pieces.receive, args=(frames, part, first)))
        try:
            for one in threads:
                one.start()
            with memoryview(part.content) as content:
                for at, count in pieces.arrived():
                    with content[at : at + count] as piece:
                        onward.send_bytes(piece)
        except BaseException as error:
            pieces.fail(error)
            onward.close()  # the rank has had the beginning: only an end shows that no more comes
            raise
        finally:
            for one in threads:
                if one.ident is not None:
                    one.join()

    def _pull_more(self, part: Part, address: str, pieces: Pieces) -> None:
        try:
            frames = connect(address, self._identity, CONNECT_SECONDS)
        except (OSError, ProtocolError, ClosedError) as error:  # the other connections fetch it all
            log.warning("keeper_not_reached", extra=fields(address=address, job=part.key.job_id, error=error))
            return
        with contextlib.closing(frames):
            frames.link.settimeout(IDLE_SECONDS)
            pieces.receive(frames, part)


def _objects(message: Message, name: str) -> Sequence[dict[str, Any]]:
    found = message.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
