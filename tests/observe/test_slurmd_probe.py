"""A node's sign of life is a connection that its slurmd ends, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from socket import SOCK_STREAM as STREAM

import pytest

from understudy_controlplane.observe.slurmd_probe import slurmd_answers
from understudy_wire.addresses import bound


@contextmanager
def slurmd(host: str) -> Iterator[int]:
    """Its port. It ends one connection, once nothing more comes."""
    with bound(host, 0) as server:
        server.listen()

        def end_a_connection() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b""
                time.sleep(0.02)  # as long as a real one takes

        thread = threading.Thread(target=end_a_connection)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@contextmanager
def swallowing(host: str) -> Iterator[int]:
    """A port where no program accepts connections, and the kernel takes no more of them."""
    with ExitStack() as opened:
        server = opened.enter_context(bound(host, 0))
        server.listen(0)
        for _ in range(4):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.05)
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_slurmd_that_ends_an_empty_connection_answers_and_a_closed_port_does_not(host: str) -> None:
    with slurmd(host) as port:
        assert slurmd_answers(host, port, 5.0)
    assert not slurmd_answers(host, port, 1.0)


def test_a_node_that_stands_still_does_not_answer_although_its_kernel_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not slurmd_answers("127.0.0.1", server.getsockname()[1], 0.05)


def test_a_node_that_swallows_connections_does_not_answer_and_does_not_hold_up() -> None:
    with swallowing("127.0.0.1") as port:
        before = time.monotonic()
        assert not slurmd_answers("127.0.0.1", port, 0.3)
        assert time.monotonic() - before < 2


def test_an_unknown_host_does_not_answer() -> None:
    assert not slurmd_answers("no-such-node.invalid", 6818, 1.0)


def test_a_name_that_no_server_resolves_in_time_does_not_hold_up() -> None:
    answer = threading.Event()

    def waits(_host: str, _port: int) -> list[object]:
        answer.wait(10)
        return []

    before = time.monotonic()
    try:
        assert not slurmd_answers("n1", 6818, 0.2, waits)
        assert time.monotonic() - before < 2
    finally:
        answer.set()


def test_each_address_of_a_name_has_what_is_left_of_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        closed = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))
        silent = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        before = time.monotonic()
        assert not slurmd_answers("n1", port, 0.3, lambda *_: [closed, silent, silent])
        assert time.monotonic() - before < 2


def test_an_address_of_a_name_on_which_the_node_cannot_be_reached_does_not_use_up_the_time() -> None:
    with slurmd("::1") as port, swallowing("127.0.0.1") as unreachable:
        places = [("127.0.0.1", unreachable), ("::1", port)]
        both = [address for place in places for address in socket.getaddrinfo(*place, type=STREAM)]
        assert slurmd_answers("n1", port, 1.0, lambda *_: both)
