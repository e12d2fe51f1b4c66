"""Two keepers: how they know each other, and what one copies from the other."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from understudy_keeper import copies
from understudy_keeper.copies import Copier, Pace, Ward, described, give
from understudy_keeper.proof import Identity, accept, connect, make_identity
from understudy_keeper.store import Key, NoRoomError, Save, Store
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import Frames

KEY = Key(1000, 1, Save(0, 0, 5), 0)


class Munge:
    """Credentials name a user and a payload, and are valid once."""

    def __init__(self, user_id: int | None = None) -> None:
        self._user_id = os.geteuid() if user_id is None else user_id
        self._made: dict[str, tuple[int, bytes]] = {}
        self.made = 0

    def sign(self, payload: bytes) -> str:
        credential = secrets.token_hex(8)
        self.made += 1
        self._made[credential] = (self._user_id, payload)
        return credential

    def decode(self, credential: str) -> tuple[int, bytes]:
        try:
            return self._made.pop(credential)
        except KeyError:
            raise OSError("the credential is refused") from None

    def as_user(self, user_id: int) -> Munge:
        other = Munge(user_id)
        other._made = self._made
        return other


def identity(munge: Munge, cluster: str = "c") -> Identity:
    return make_identity(cluster, munge.sign, munge.decode)


@contextlib.contextmanager
def keeper(own: Identity, store: Store, ended: list[BaseException] | None = None) -> Iterator[str]:
    """Its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(link: socket.socket) -> None:
        link.settimeout(30)
        try:
            with contextlib.closing(accept(link, own)) as frames:
                give(frames, store, frames.receive())
        except (OSError, ProtocolError, ClosedError) as error:
            link.close()
            if ended is not None:
                ended.append(error)

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(link,)))
                threads[-1].start()

    listening = threading.Thread(target=listen)
    listening.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in (listening, *threads):
            one.join(30)
            assert not one.is_alive()


def holding(content: bytes, key: Key = KEY, store: Store | None = None) -> Store:
    store = store or Store(1 << 24, 1 << 24)
    part = store.reserve(key, 2, len(content), "crc32:1", None)
    part.content[:] = content
    store.finish(part)
    return store


def content_of(store: Store, key: Key = KEY) -> bytes | None:
    with store.reading(key) as part:
        return None if part is None else part.content[:]


def copier(store: Store, own: Identity) -> Copier:
    return Copier(store, own, Pace(1e12), wait_seconds=0)


def fetch(target: Copier, asked: dict[str, object], address: str, key: Key = KEY) -> bytes:
    """What the rank gets."""
    near, far = socket.socketpair()
    received = bytearray()
    with contextlib.closing(Frames(near)) as rank, contextlib.closing(Frames(far)) as onward:

        def read() -> None:
            received.extend(bytes(int(rank.receive()["length"])))
            rank.receive_into(memoryview(received))

        reading = threading.Thread(target=read)
        reading.start()
        try:
            target.fetch(key, asked, address, onward)
        finally:
            onward.link.shutdown(socket.SHUT_RDWR)
            reading.join(30)
    return bytes(received)


@pytest.mark.parametrize("connections", [1, 3])
def test_a_newcomer_gets_each_piece_as_it_comes_and_its_keeper_holds_the_part(
    connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 200_000)
    munge, content = Munge(), os.urandom(2_500_000)
    source, target = holding(content), Store(1 << 24, 1 << 24)
    with keeper(identity(munge), source) as address:
        asked = described(source.parts_of(1000, 1)[0])
        fetching = Copier(target, identity(munge), Pace(1e12), connections=connections)
        assert fetch(fetching, asked, address) == content
        assert fetch(fetching, asked, address) == content, "it is here now"
    assert content_of(target) == content
    assert source.counts.bytes_sent == len(content)


def refused(target: Copier, key: Key, asked: dict[str, object], address: str) -> None:
    near, far = socket.socketpair()
    with near, contextlib.closing(Frames(far)) as onward:
        target.fetch(key, asked, address, onward)


def test_nothing_of_another_user_is_given() -> None:
    munge = Munge()
    source, target = holding(b"secret"), Store(1000, 1000)
    with keeper(identity(munge), source) as address:
        asked = described(source.parts_of(1000, 1)[0])
        with pytest.raises(NoRoomError, match="not held"):
            refused(copier(target, identity(munge)), KEY._replace(user_id=1001), asked, address)
    assert target.bytes_held == 0


def test_a_program_of_a_user_is_no_keeper_at_either_end() -> None:
    munge = Munge()
    user, root = identity(munge.as_user(4321)), identity(munge)
    ended: list[BaseException] = []
    with keeper(user, holding(b"x")) as address, pytest.raises(ProtocolError, match="of user 4321"):
        connect(address, root, 30)
    with keeper(root, holding(b"x"), ended) as address:
        trusting = identity(munge.as_user(4321))
        object.__setattr__(trusting, "user_id", os.geteuid())
        with pytest.raises((OSError, ProtocolError, ClosedError)):
            connect(address, trusting, 30)
    assert "of user 4321" in str(ended[0])


def test_a_credential_of_another_connection_proves_nothing() -> None:
    """A program that passes on what a keeper says would need that."""
    munge = Munge()
    own = identity(munge)
    wrong = munge.sign(own.claim("called", "0" * 64, "0" * 32))

    def answer(link: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, ClosedError),
            contextlib.closing(Frames(own.context.wrap_socket(link, server_side=True))) as frames,
        ):
            frames.receive()
            frames.send({"credential": wrong, "challenge": "1"})
            frames.receive()

    with listening(answer) as address, pytest.raises(ProtocolError, match="not for this connection"):
        connect(address, own, 30)


def test_keepers_of_another_cluster_are_strangers() -> None:
    munge = Munge()
    with keeper(identity(munge, "other"), holding(b"x")) as address, pytest.raises(ProtocolError):
        connect(address, identity(munge), 30)


def test_strangers_learn_nothing_and_hold_nothing_up() -> None:
    munge = Munge()
    ended: list[BaseException] = []
    with keeper(identity(munge), holding(b"x"), ended) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in link.recv(100)
        with contextlib.closing(connect(address, identity(munge), 30)):
            pass


@pytest.mark.parametrize("address", ["", "n2", "n2:", "n2:99999", ":7119", "n2:-1", f"{'a' * 70}.b:7119"])
def test_what_a_user_names_in_place_of_a_keeper_is_refused(address: str) -> None:
    with pytest.raises((ProtocolError, OSError)):
        connect(address, identity(Munge()), 1)


STRANGERS: list[dict[str, object]] = [
    {"challenge": "\ud800"},
    {"challenge": "é"},
    {"challenge": 5},
    {},
    {"challenge": "a claim of root"},
    {"challenge": "0" * 31 + "\n"},
    {"challenge": "0" * 33},
    {"challenge": "A" * 32},
]


@pytest.mark.parametrize("first", STRANGERS)
def test_what_a_stranger_sends_in_place_of_a_challenge_is_refused(first: dict[str, object]) -> None:
    munge = Munge()
    own = identity(munge)
    ended: list[BaseException] = []
    with keeper(own, holding(b"x"), ended) as address:
        host, port = address.split(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, int(port)), timeout=30) as link, context.wrap_socket(link) as secure:
            Frames(secure).send(first)
            with contextlib.suppress(OSError):
                assert not secure.recv(1)
    assert [type(one) for one in ended] == [ProtocolError]
    assert munge.made == 0, "root signs no words of a stranger"


def test_each_new_part_of_a_ward_is_copied_and_confirmed() -> None:
    munge = Munge()
    source, target = holding(b"first"), Store(1 << 20, 1 << 20)
    other = KEY._replace(rank=9)
    holding(b"of another node", other, source)
    ended = threading.Event()
    with keeper(identity(munge), source) as address:
        ward = Ward(1000, 1, address, frozenset({0}))
        following = threading.Thread(target=copier(target, identity(munge)).follow, args=(ward, ended))
        following.start()
        try:
            assert source.await_copy(KEY, 30) == 2
            later = KEY._replace(save=Save(0, 0, 6))
            part = source.reserve(later, 2, 6, "crc32:2", KEY.save)
            part.content[:] = b"second"
            source.finish(part)
            assert source.await_copy(later, 30) == 2
        finally:
            ended.set()
            following.join(30)
        assert not following.is_alive()
    assert (content_of(target), content_of(target, later)) == (b"first", b"second")
    assert content_of(target, other) is None
    assert source.await_copy(other, 0) == 1


def test_a_copy_that_breaks_off_leaves_nothing_behind() -> None:
    munge, target = Munge(), Store(1 << 24, 1 << 24)
    own = identity(munge)

    def half(link: socket.socket) -> None:
        with contextlib.closing(accept(link, own)) as frames:
            question = frames.receive()
            described_part = {"length": 1000, "checksum": "crc32:1", "world_size": 2}
            frames.send({**question, **described_part})
            frames.send_bytes(memoryview(b"x" * 500))

    near, far = socket.socketpair()
    with contextlib.closing(Frames(near)) as rank:
        with listening(half) as address, pytest.raises(OSError, match="after 500 of 1000"):
            asked = {"length": 1000, "checksum": "crc32:1", "world_size": 2}
            copier(target, own).fetch(KEY, asked, address, Frames(far))
        assert rank.receive()["type"] == "part"
        with pytest.raises(ConnectionResetError):  # the rank knows that this is no part
            rank.receive_into(memoryview(bytearray(1000)))
    assert (target.bytes_held, target.jobs()) == (0, [])


def test_a_full_keeper_keeps_what_it_has() -> None:
    munge = Munge()
    source, target = holding(b"x" * 600), holding(b"y" * 600, KEY._replace(job_id=2), Store(1000, 1000))
    with keeper(identity(munge), source) as address:
        asked = described(source.parts_of(1000, 1)[0])
        with pytest.raises(NoRoomError):
            refused(copier(target, identity(munge)), KEY, asked, address)
    assert content_of(target, KEY._replace(job_id=2)) == b"y" * 600


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = listener.accept()
        link.settimeout(30)
        with link:
            answer(link)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        serving.join(30)
        listener.close()
