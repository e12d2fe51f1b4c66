"""What a process can ask of the keeper on its node, and what it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from understudy_keeper.copies import Copier
from understudy_keeper.local import Conversation, LocalKeeper
from understudy_keeper.places import Room
from understudy_keeper.server import Lines
from understudy_keeper.store import Store
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import Frames

SAVE = [0, 0, 5]


class Rank:
    """A process with this user id; `refused` is why the keeper ended the conversation."""

    def __init__(self, store: Store, user_id: int) -> None:
        near, far = socket.socketpair()
        near.settimeout(30)
        self.frames = Frames(near)
        self.refused = ""
        keeper = LocalKeeper(store, Mock(spec=Copier), "n1:7119")
        self._server = Frames(far, 65_536)
        self._conversation = Conversation(keeper, self._server, user_id)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.frames.send({"type": kind, "job_id": 1, **fields})
        return self.frames.receive()

    def put(self, content: bytes, rank: int = 0, length: int | None = None, fd: int | None = None) -> dict[str, Any]:
        descriptor = os.memfd_create("part") if fd is None else fd
        try:
            if fd is None:
                os.write(descriptor, content)
            message = {"save": SAVE, "rank": rank, "world_size": 2, "checksum": "crc32:0"}
            size = len(content) if length is None else length
            body = self._body({"type": "put", "job_id": 1, **message, "length": size})
            socket.send_fds(self.frames.link, [body], [descriptor])
        finally:
            os.close(descriptor)
        return self.frames.receive()

    def get(self, rank: int = 0) -> bytes | str:
        answer = self.ask("get", save=SAVE, rank=rank)
        if answer.get("error"):
            return str(answer["error"])
        content = bytearray(answer["length"])
        self.frames.receive_into(memoryview(content))
        return bytes(content)

    def close(self) -> None:
        self.frames.close()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _body(self, message: dict[str, Any]) -> bytes:

        text = json.dumps(message).encode()
        return len(text).to_bytes(4, "big") + text

    def _serve(self) -> None:
        try:
            self._conversation.run()
        except ProtocolError as error:
            self.refused = str(error)
        except OSError:
            pass
        finally:
            self._server.close()


@contextlib.contextmanager
def rank(store: Store, user_id: int = 1000) -> Iterator[Rank]:
    one = Rank(store, user_id)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def store() -> Store:
    return Store(1 << 24, 1 << 23)


def test_a_part_comes_back_as_it_was_given(store: Store) -> None:
    content = os.urandom(3_000_001)
    with rank(store) as one:
        assert one.put(content) == {"held": True}
        [listed] = one.ask("list")["parts"]
        assert (listed["save"], listed["rank"], listed["length"]) == (SAVE, 0, len(content))
        assert one.get() == content


def test_the_rank_can_use_its_memory_again_at_once(store: Store) -> None:
    """The keeper has copied it: what becomes of the rank's memory changes nothing."""
    descriptor = os.memfd_create("part")
    kept = os.dup(descriptor)
    os.write(descriptor, b"a" * 100)
    with rank(store) as one, os.fdopen(kept, "wb"):
        assert one.put(b"", length=100, fd=descriptor) == {"held": True}
        os.ftruncate(kept, 0)
        assert one.get() == b"a" * 100


def test_another_user_neither_sees_nor_gets_nor_frees_a_part(store: Store) -> None:
    with rank(store, 1000) as one, rank(store, 1001) as other:
        one.put(b"secret")
        assert other.ask("list")["parts"] == []
        assert other.get() == "this part is not held"
        other.ask("free")
        assert other.put(b"other") == {"held": True}
        assert (one.get(), other.get()) == (b"secret", b"other")
        assert "only root" in other.ask("status")["error"]


@pytest.mark.parametrize("what", ["file", "pipe", "socket", "null"])
def test_a_descriptor_that_is_no_memory_is_refused(store: Store, what: str) -> None:
    """A read of it could wait for ever."""
    with contextlib.ExitStack() as stack:
        if what == "file":
            descriptor = os.dup(stack.enter_context(tempfile.TemporaryFile(dir="/var/tmp")).fileno())
        elif what == "pipe":
            descriptor, other = os.pipe()
            stack.callback(os.close, other)
        elif what == "socket":
            descriptor = socket.socket().detach()
        else:
            descriptor = os.open("/dev/null", os.O_RDONLY)
        one = stack.enter_context(rank(store))
        with pytest.raises((ClosedError, OSError)):
            one.put(b"", length=10, fd=descriptor)
        one.close()
        assert "none of memory" in one.refused
    assert (store.bytes_held, store.jobs()) == (0, [])


def test_a_length_beyond_the_memory_is_refused(store: Store) -> None:
    with rank(store) as one:
        with pytest.raises((ClosedError, OSError)):
            one.put(b"short", length=1000)
        one.close()
        assert "fewer than 1000 bytes" in one.refused
    assert store.bytes_held == 0


def test_a_part_over_the_limit_is_refused_and_the_rank_goes_on(store: Store) -> None:
    with rank(store) as one:
        assert one.put(b"whole") == {"held": True}
        descriptor = os.memfd_create("large")
        os.ftruncate(descriptor, 1 << 30)  # holes take no memory
        assert "limit" in one.put(b"", rank=1, length=1 << 30, fd=descriptor)["error"]
        assert one.get() == b"whole"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "put", "job_id": 1, "save": SAVE, "rank": 0, "world_size": 2, "length": 5, "checksum": ""},
        {"type": "get", "job_id": 1, "save": [1, 2], "rank": 0},
        {"type": "get", "job_id": 1, "save": [1, 2, True], "rank": 0},
        {"type": "get", "job_id": 1, "save": [1, 2, -3], "rank": 0},
        {"type": "get", "job_id": -1, "save": SAVE, "rank": 0},
        {"type": "get", "job_id": 1, "save": SAVE, "rank": "0"},
        {"type": "copied", "job_id": 1, "save": SAVE, "rank": 0, "seconds": 1e9},
        {"type": "follow", "job_id": 1, "ranks": ["a"], "keeper": "n2:7119"},
        {"type": "follow", "job_id": 1, "ranks": [0] * 300, "keeper": "n2:7119"},
    ],
)
def test_what_makes_no_sense_ends_the_conversation(store: Store, message: dict[str, Any]) -> None:
    with rank(store) as one:
        one.frames.send(message)
        with pytest.raises((ClosedError, OSError)):
            one.frames.receive()
        one.close()
        assert one.refused


def test_a_message_that_is_too_long_is_not_read(store: Store) -> None:
    with rank(store) as one:
        one.frames.link.sendall((1 << 20).to_bytes(4, "big"))
        with pytest.raises((ClosedError, OSError)):
            one.frames.receive()
        one.close()
        assert "1048576 bytes" in one.refused


def test_descriptors_that_no_message_needs_are_closed(store: Store) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with rank(store) as one:
        for _ in range(20):
            descriptor = os.memfd_create("more")
            body = one._body({"type": "hello", "job_id": 1})
            socket.send_fds(one.frames.link, [body], [descriptor])
            os.close(descriptor)
            assert one.frames.receive() == {"keeper": "n1:7119"}
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_user_causes_few_lines_of_the_log() -> None:
    lines = Lines()
    assert sum(lines.admits(1000) for _ in range(100)) == 32
    assert lines.admits(1001)


def test_a_flood_of_connections_leaves_room_for_others() -> None:
    room = Room(10, 6)
    assert [room.enter(1000) for _ in range(8)] == [True] * 6 + [False] * 2
    assert [room.enter(1001) for _ in range(5)] == [True] * 4 + [False]
    room.leave(1000)
    assert room.enter(1001)
