"""Any program that reaches the launcher's port costs itself its connection, and the gang nothing."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.keys import GREETING, JOB_KEY
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_launcher import hub, join_launcher
from understudy_launcher.hub import Hub, open_server
from understudy_launcher.open_files import NotEnoughFiles, OpenFiles, files_for, needed
from understudy_launcher.protocol import Message, encode


@pytest.fixture
def opened() -> Iterator[Hub]:
    one = Hub(JOB_KEY, open_server())
    yield one
    one.close()


def connect(to: Hub, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", to.port), timeout=PATIENCE_SECONDS, source_address=(source, 0))


def received(of: Hub, seconds: float) -> list[Message]:
    deadline = time.monotonic() + seconds
    found: list[Message] = []
    while not found and time.monotonic() < deadline:
        found += [message for _, message in of.wait(0.01)]
    return found


def a_seat_gets_in(to: Hub) -> bool:
    """True if a true seat, on a node of its own, is verified."""
    errors: list[BaseException] = []

    def greet() -> None:
        try:
            with join_launcher.greet(connect(to, "127.0.0.77"), GREETING) as link:
                while link.recv(64):  # until the hub closes it
                    pass
        except (OSError, AssertionError) as error:
            errors.append(error)

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    return received(to, PATIENCE_SECONDS) == [{"type": "hello"}]


NASTY = {
    "deeply nested": b"[" * 20_000 + b"\n",
    "deeply nested in a message": b'{"type": "hello", "secret": ' + b"[" * 20_000 + b"\n",
    "a secret with a lone surrogate": b'{"type": "hello", "secret": "\\ud800"}\n',
    "a secret that is not ASCII": '{"type": "hello", "secret": "é"}\n'.encode(),
    "a number of 20,000 digits": b'{"type": "hello", "secret": ' + b"9" * 20_000 + b"}\n",
    "bytes that are no text": b"\xff\xfe\x00\n",
    "a null byte": b'{"type": "hello\\u0000", "secret": "\\u0000"}\n',
    "another message twice": 2 * encode("seat", challenge="x"),
    "a long line": b"x" * 100_000,
    "an array": b"[1, 2]\n",
}


@contextlib.contextmanager
def stranger_of(to: Hub, encrypted: bool) -> Iterator[socket.socket]:
    """Any program can encrypt what it sends to the launcher: only a seat knows whose key it must be."""
    with connect(to) as link:
        if not encrypted:
            yield link
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        link.setblocking(False)
        with context.wrap_socket(link, do_handshake_on_connect=False) as secure:
            over = False
            while not over:
                with contextlib.suppress(ssl.SSLWantReadError):
                    secure.do_handshake()
                    over = True
                list(to.wait(0.0))
            secure.settimeout(PATIENCE_SECONDS)
            yield secure


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("sent", NASTY.values(), ids=NASTY.keys())
def test_whatever_a_stranger_sends_costs_it_its_connection(opened: Hub, sent: bytes, encrypted: bool) -> None:
    with stranger_of(opened, encrypted) as stranger:
        with contextlib.suppress(OSError):  # disconnected while it sends
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
        assert received(opened, 0.2) == []
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(65536):  # an alert of TLS may come first
                pass
    assert a_seat_gets_in(opened)


@given(
    st.one_of(st.binary(max_size=300), st.recursive(st.none() | st.text() | st.integers() | st.floats(), st.lists)),
    st.booleans(),
)
def test_nothing_that_a_stranger_can_send_ends_the_launcher(value: object, encrypted: bool) -> None:
    one = Hub(JOB_KEY, open_server())
    try:
        with stranger_of(one, encrypted) as stranger:
            fields = {"type": "hello", "secret": value, "node": value, "generation": value}
            line = value if isinstance(value, bytes) else json.dumps(fields).encode()
            with contextlib.suppress(OSError):
                stranger.sendall(line + b"\n")
            assert [message for _, message in one.wait(0.001)] == []
    finally:
        one.close()


@given(st.binary(max_size=200))
def test_nothing_in_place_of_a_handshake_ends_the_launcher(sent: bytes) -> None:
    """Records of TLS whose content is no handshake, and those that begin like one."""
    one = Hub(JOB_KEY, open_server())
    try:
        for record in (sent, b"\x16\x03\x01" + len(sent).to_bytes(2, "big") + sent):
            with connect(one) as stranger:
                stranger.sendall(record)
                assert [message for _, message in one.wait(0.001)] == []
    finally:
        one.close()


def test_strangers_who_begin_handshakes_all_the_time_keep_neither_the_loop_nor_a_seat(opened: Hub) -> None:
    """Each handshake costs the launcher 0.2 ms: in one pass of its loop it makes only so many."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as strangers:
        for host in range(2, 14):
            for _ in range(hub.STRANGERS_OF_AN_ADDRESS_MAX - 1):
                link = strangers.enter_context(connect(opened, f"127.0.0.{host}"))
                link.setblocking(False)
                with contextlib.suppress(ssl.SSLWantReadError):
                    strangers.enter_context(context.wrap_socket(link, do_handshake_on_connect=False)).do_handshake()
        passes = []
        for _ in range(20):
            began = time.process_time()
            list(opened.wait(0.0))
            passes.append(time.process_time() - began)
        assert statistics.median(passes) < 2 * hub.HANDSHAKE_SECONDS_A_PASS
        assert a_seat_gets_in(opened)


def test_idle_strangers_of_one_host_keep_no_seat_out(opened: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "UNPROVEN_SECONDS", 2 * PATIENCE_SECONDS)
    with contextlib.ExitStack() as strangers:
        for _ in range(3 * hub.STRANGERS_OF_AN_ADDRESS_MAX):
            strangers.enter_context(connect(opened))
            list(opened.wait(0))
        assert len(opened._unverified) <= hub.STRANGERS_OF_AN_ADDRESS_MAX
        assert a_seat_gets_in(opened)


def test_a_flood_from_a_seats_own_host_does_not_keep_it_out(opened: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stranger opens connections all the time, and so does not even have to wait for a free place."""
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    monkeypatch.setattr(hub, "STRANGERS_OF_AN_ADDRESS_MAX", 16)
    over, joined = threading.Event(), threading.Event()

    def flood() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), contextlib.ExitStack() as strangers:
                for _ in range(20):
                    strangers.enter_context(connect(opened))

    def seat() -> None:
        with join_launcher.join(GREETING, opened.port) as link:
            joined.set()
            over.wait(10)
            link.close()

    threads = [threading.Thread(target=one, daemon=True) for one in (flood, seat)]
    for thread in threads:
        thread.start()
    try:
        assert received(opened, PATIENCE_SECONDS) == [{"type": "hello"}]
        assert joined.wait(PATIENCE_SECONDS)
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def test_at_the_limit_it_stops_accepting_and_comes_back(opened: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "STRANGERS_MAX", 3)
    monkeypatch.setattr(hub, "UNPROVEN_SECONDS", 0.3)
    with contextlib.ExitStack() as strangers:
        for host in range(2, 8):
            strangers.enter_context(connect(opened, f"127.0.0.{host}"))
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            list(opened.wait(0.01))
            assert len(opened._unverified) <= 3
        assert a_seat_gets_in(opened)


def test_without_free_files_it_waits_and_goes_on(opened: Hub) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as strangers:
        waiting = [socket.socket() for _ in range(4)]  # made before the files are used up
        for one in waiting:
            strangers.enter_context(one)
        with open("/dev/null") as highest:  # noqa: PTH123 - its number is wanted
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
            try:
                for one in waiting:
                    one.connect(("127.0.0.1", opened.port))
                began = time.process_time()
                assert received(opened, 0.5) == []
                assert time.process_time() - began < 0.3, "it does not try again and again at once"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert a_seat_gets_in(opened)


def test_a_stranger_that_says_nothing_is_disconnected(opened: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "UNPROVEN_SECONDS", 0.1)
    with connect(opened) as stranger:
        stranger.setblocking(False)
        wait_until(lambda: is_closed(opened, stranger), "the stranger is disconnected")


def is_closed(to: Hub, connection: socket.socket) -> bool:
    list(to.wait(0.01))
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_large_gang_gets_the_files_that_it_needs_and_its_ranks_keep_their_limit() -> None:
    assert files_for(8, (1024, 20_000)) == OpenFiles(1024)
    files = files_for(2048, (1024, 20_000))
    assert files == OpenFiles(needed(2048) + hub.STRANGERS_MAX, ("prlimit", "--nofile=1024:20000", "--"))
    assert files.soft > 4096
    assert files_for(2048, (1024, resource.RLIM_INFINITY)).before_srun == ("prlimit", "--nofile=1024:unlimited", "--")


def test_where_there_are_few_more_than_seats_need_the_gang_starts_all_the_same() -> None:
    assert files_for(400, (1024, 1024)) == OpenFiles(1024, ("prlimit", "--nofile=1024:1024", "--"))


def test_where_there_are_too_few_for_two_seats_on_each_node_no_standbys_are_started() -> None:
    files = files_for(12_500, (1024, 20_000))
    assert files.soft == 20_000
    assert files.no_standbys.startswith("they need 25064 open files, and this job may open 20000: ask for a higher")


def test_the_error_names_how_many_files_a_gang_needs() -> None:
    with pytest.raises(NotEnoughFiles, match=r"8192 nodes need 8256 open files, 16448 with.* 4096"):
        files_for(8192, (1024, 4096))
