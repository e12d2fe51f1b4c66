"""The launcher accepts some seats, and a seat some launchers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.launch.keys import GREETING, JOB_KEY
from tests.waiting import PATIENCE_SECONDS
from understudy_launcher import join_launcher
from understudy_launcher.hub import Hub, open_server
from understudy_launcher.join_launcher import Greeting
from understudy_launcher.protocol import Lines, Message, encode
from understudy_wire.errors import ProtocolError


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub(JOB_KEY, open_server())
    yield opened
    opened.close()


def received(hub: Hub, seconds: float = PATIENCE_SECONDS) -> list[tuple[str, Message]]:
    """What the hub gives out until it has given something, or the time is over."""
    found: list[tuple[str, Message]] = []
    deadline = time.monotonic() + seconds
    while not found and time.monotonic() < deadline:
        found += [(link.node, message) for link, message in hub.wait(0.02)]
    return found


def connect(hub: Hub, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, hub.port), timeout=PATIENCE_SECONDS)


def seat_of(hub: Hub, host: str = "127.0.0.1") -> socket.socket:
    """A seat's connection, which the hub has accepted."""
    found: list[socket.socket] = []
    thread = threading.Thread(target=lambda: found.append(join_launcher.greet(connect(hub, host), GREETING)))
    thread.start()
    try:
        assert received(hub) == [(join_launcher.node_name(), {"type": "hello"})]
    finally:
        thread.join(20)
    return found[0]


def refused(hub: Hub, seats: Greeting) -> BaseException:
    """Why a seat that has these is not accepted."""
    errors: list[BaseException] = []

    def greet() -> None:
        try:
            join_launcher.greet(connect(hub), seats).close()
        except (OSError, ProtocolError) as error:
            errors.append(error)

    thread = threading.Thread(target=greet)
    thread.start()
    while thread.is_alive():
        assert received(hub, 0.1) == []
    return errors[0]


def test_a_seat_that_knows_the_secret_is_accepted_and_lost_when_it_disconnects(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n4")
    with seat_of(hub) as link:
        link.sendall(encode("beat"))
        assert received(hub, 0.1) == []
        link.sendall(encode("gone"))
        assert received(hub) == [("n4", {"type": "gone"})]
    assert received(hub) == [("n4", {"type": "lost"})]


def test_the_seats_that_are_silent_are_those_without_a_message_since(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message puts its seat to the end of the order in which they are looked at. A stranger is no seat."""
    with contextlib.ExitStack() as connections:
        connections.enter_context(connect(hub))
        links = {}
        for node in ("n1", "n2", "n3"):
            monkeypatch.setenv("SLURMD_NODENAME", node)
            links[node] = connections.enter_context(seat_of(hub))
        now = time.monotonic()
        monkeypatch.setattr("understudy_launcher.hub.time", types.SimpleNamespace(monotonic=lambda: now))
        for _ in range(10):  # the launcher runs all the time: otherwise no seat would be silent
            now += 0.5
            assert list(hub.wait(0.0)) == []
        assert [link.node for link in hub.silent(3.0)] == ["n1", "n2", "n3"]
        links["n1"].sendall(encode("beat"))
        while len(list(hub.silent(3.0))) == 3:
            for _ in hub.wait(0.0):
                pass
        assert [link.node for link in hub.silent(3.0)] == ["n2", "n3"]
        assert list(hub.silent(4.5)) == []


def pace_of(seat: socket.socket) -> Message:
    """How often it must beat from now on. The launcher may beat before."""
    lines = Lines()
    while True:
        for message in lines.feed(seat.recv(4096)):
            if message["type"] != "beat":
                return message


def test_a_seat_that_rests_is_never_silent_until_it_says_something(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with seat_of(hub) as seat:
        hub.rest(next(hub.silent(-1.0)))
        assert list(hub.silent(-1.0)) == []
        assert pace_of(seat) == {"type": "pace", "resting": True}
        seat.sendall(encode("beat"))
        assert received(hub, 0.1) == []
        assert list(hub.silent(-1.0)) == []
        seat.sendall(encode("signalled", number=15))
        assert received(hub) == [("n1", {"type": "signalled", "number": 15})]
        assert pace_of(seat) == {"type": "pace", "resting": False}
        assert [link.node for link in hub.silent(-1.0)] == ["n1"]


def test_the_launchers_beats_are_rare_but_to_a_seat_whose_step_slurm_ends(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM a seat waits for eight seconds, and otherwise for two minutes."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with seat_of(hub) as seat:
        now = time.monotonic()
        monkeypatch.setattr("understudy_launcher.hub.time", types.SimpleNamespace(monotonic=lambda: now))

        def beats(seconds: float) -> int:
            nonlocal now
            until = now + seconds
            while now < until:
                now += 0.5
                assert list(hub.wait(0.0)) == []
            hub.send(link, "mark")
            came = b""
            while b"mark" not in came:
                came += seat.recv(4096)
            return came.count(b"beat")

        link = next(hub.silent(-1.0))
        assert 2 <= beats(75.0) <= 3
        hub.beat_often(link)
        assert 24 <= beats(75.0) <= 25


def test_a_seat_that_rests_is_lost_when_it_disconnects(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with seat_of(hub):
        hub.rest(next(hub.silent(-1.0)))
    assert received(hub) == [("n1", {"type": "lost"})]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode("exited", local_rank=0, status=1),
        encode("hello", secret=JOB_KEY.secret, node="n1", generation=0, step="0", address="", port=1, gpus=0),
    ],
    ids=["http", "a rank's end", "even the secret"],
)
def test_a_program_that_speaks_no_tls_is_disconnected_and_ignored(hub: Hub, sent: bytes) -> None:
    with connect(hub) as link:
        link.sendall(sent)
        assert received(hub, 0.3) == []
        with contextlib.suppress(ConnectionResetError):
            assert b'"type"' not in link.recv(4096), "at most an alert of TLS"
            assert link.recv(4096) == b""


def test_a_program_without_the_secret_is_disconnected_and_ignored(hub: Hub) -> None:
    assert "closed the connection" in str(refused(hub, replace(GREETING, secret="a guess")))
    assert len(hub._unverified) == 0


def test_a_seat_accepts_no_launcher_that_does_not_have_the_key_of_its_job(hub: Hub) -> None:
    error = refused(hub, replace(GREETING, fingerprint="00" * 32))
    assert isinstance(error, ProtocolError)
    assert "does not have the key of this job's launcher" in str(error)


def test_nothing_that_travels_can_be_read(hub: Hub) -> None:
    """A proxy between seat and launcher sees neither the secret nor a message."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while piece := source.recv(65536):
                    seen.append(piece)
                    target.sendall(piece)

        near = socket.create_connection(proxy.getsockname())
        far, _ = proxy.accept()
        with far, connect(hub) as onward:
            threads = [threading.Thread(target=pass_on, args=pair) for pair in ((far, onward), (onward, far))]
            threads.append(threading.Thread(target=lambda: join_launcher.greet(near, GREETING).close()))
            for thread in threads:
                thread.start()
            assert received(hub) == [(join_launcher.node_name(), {"type": "hello"})]
            threads[2].join(10)
            onward.shutdown(socket.SHUT_RDWR)
            assert [message["type"] for _, message in received(hub)] == ["lost"]
            for thread in threads:
                thread.join(10)
    assert len(seen) > 2
    assert JOB_KEY.secret.encode() not in b"".join(seen)
    assert b'"type"' not in b"".join(seen)


def test_half_a_handshake_does_not_delay_the_launcher(hub: Hub) -> None:
    with connect(hub) as link:
        link.sendall(b"\x16\x03\x01\x02\x00\x01")  # the begin of a client's hello
        began = time.monotonic()
        assert received(hub, 0.3) == []
        assert time.monotonic() - began < 1.0
        assert len(hub._unverified) == 1


def test_it_wakes_up_for_another_connection_and_does_not_read_it(hub: Hub) -> None:
    near, far = socket.socketpair()
    with near, far:
        hub.also_wait_for(near)
        far.send(b"bytes")
        begun = time.monotonic()
        assert list(hub.wait(PATIENCE_SECONDS)) == []
        assert time.monotonic() - begun < PATIENCE_SECONDS / 2
        assert near.recv(100) == b"bytes"
        hub.also_wait_for(None)
        far.send(b"more")
        begun = time.monotonic()
        list(hub.wait(0.1))
        assert time.monotonic() - begun >= 0.09


def test_another_connection_may_be_closed_before_the_next_is_named(hub: Hub) -> None:
    for _ in range(3):
        near, far = socket.socketpair()
        with near, far:
            hub.also_wait_for(near)
    hub.also_wait_for(None)
    assert list(hub.wait(0.0)) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_seat_joins_by_either_family_and_gives_the_gang_an_address_of_it(hub: Hub, host: str) -> None:
    with seat_of(hub, host):
        (link,) = hub.silent(-1.0)
        assert link.address == host


def test_the_launcher_listens_where_it_is_allowed_to() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="--port-range"):
            open_server(range(port, port + 1))
    one = open_server(range(port, port + 1))
    assert one.getsockname()[1] == port
    one.close()
