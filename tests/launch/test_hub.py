"""Which seats the launcher accepts, and which launcher a seat accepts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import types
from collections.abc import Iterator

import pytest

from understudy_agent.launch import greeting
from understudy_agent.launch.hub import Hub
from understudy_agent.launch.protocol import Message, ProtocolError, answer, encode


@pytest.fixture
def hub() -> Iterator[Hub]:
    opened = Hub("the secret")
    yield opened
    opened.close()


def received(hub: Hub, seconds: float = 1.0) -> list[tuple[str, Message]]:
    """What the hub gives out until it has given something, or the time is over."""
    found: list[tuple[str, Message]] = []
    deadline = time.monotonic() + seconds
    while not found and time.monotonic() < deadline:
        found += [(link.node, message) for link, message in hub.wait(0.02)]
    return found


def connect(hub: Hub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", hub.port), timeout=5)


def greet(link: socket.socket, secret: str, errors: list[str]) -> None:
    try:
        greeting.greet(link, secret, 0, 23456)
    except ProtocolError as error:
        errors.append(str(error))


def test_a_seat_that_knows_the_secret_is_accepted_and_lost_when_it_disconnects(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n4")
    with connect(hub) as link:
        errors: list[str] = []
        thread = threading.Thread(target=greet, args=(link, "the secret", errors))
        thread.start()
        assert received(hub) == [("n4", {"type": "hello"})]
        thread.join()
        assert errors == []
        link.sendall(encode("beat"))
        assert received(hub, 0.1) == []
        link.sendall(encode("gone"))
        assert received(hub) == [("n4", {"type": "gone"})]
    assert received(hub) == [("n4", {"type": "lost"})]


def test_the_seats_that_are_silent_are_those_without_a_message_since(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message puts its seat to the end of the order in which they are looked at. A stranger is no seat."""
    with contextlib.ExitStack() as connections:
        links = {node: connections.enter_context(connect(hub)) for node in ("n1", "n2", "n3", "a stranger")}
        for node in ("n1", "n2", "n3"):
            monkeypatch.setenv("SLURMD_NODENAME", node)
            thread = threading.Thread(target=greet, args=(links[node], "the secret", []))
            thread.start()
            assert received(hub) == [(node, {"type": "hello"})]
            thread.join()
        now = time.monotonic()
        monkeypatch.setattr("understudy_agent.launch.hub.time", types.SimpleNamespace(monotonic=lambda: now))
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


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode("exited", local_rank=0, status=1),
        encode("hello", answer="", node="n1", generation=0, step="0", address="", port=1, gpus=0),
        encode("seat", challenge="x")
        + encode(
            "hello", answer=answer("a guess", "seat", "x"), node="n1", generation=0, step="", address="", port=1, gpus=0
        ),
    ],
)
def test_a_program_without_the_secret_is_disconnected_and_ignored(hub: Hub, sent: bytes) -> None:
    with connect(hub) as link:
        link.sendall(sent)
        assert received(hub, 0.3) == []
        answered = b""
        while piece := link.recv(4096):
            answered += piece
        assert [json.loads(line)["type"] for line in answered.splitlines()] in ([], ["welcome"])


def test_a_seat_accepts_no_launcher_that_does_not_know_the_secret(hub: Hub) -> None:
    with connect(hub) as link:
        errors: list[str] = []
        thread = threading.Thread(target=greet, args=(link, "another secret", errors))
        thread.start()
        assert received(hub, 0.3) == []
        thread.join()
    assert "does not know this launch's secret" in errors[0]


def test_it_wakes_up_for_another_connection_and_does_not_read_it(hub: Hub) -> None:
    near, far = socket.socketpair()
    with near, far:
        hub.also_wait_for(near)
        far.send(b"bytes")
        begun = time.monotonic()
        assert list(hub.wait(5.0)) == []
        assert time.monotonic() - begun < 1.0
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


def test_the_launcher_listens_where_it_is_allowed_to() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="--port-range"):
            Hub("the secret", range(port, port + 1))
    one = Hub("the secret", range(port, port + 1))
    assert one.port == port
    one.close()
