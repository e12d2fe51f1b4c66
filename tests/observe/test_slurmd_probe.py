"""A node's sign of life is a connection that its slurmd ends, and nothing else."""

from __future__ import annotations

import socket
import threading
import time

from understudy_controlplane.observe.slurmd_probe import slurmd_answers


def test_a_slurmd_that_ends_an_empty_connection_answers_and_a_closed_port_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def slurmd() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b""

        thread = threading.Thread(target=slurmd)
        thread.start()
        assert slurmd_answers("127.0.0.1", port, 5.0)
        thread.join()
    assert not slurmd_answers("127.0.0.1", port, 1.0)


def test_a_node_that_stands_still_does_not_answer_although_its_kernel_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not slurmd_answers("127.0.0.1", server.getsockname()[1], 0.05)


def test_a_node_that_swallows_connections_does_not_answer_and_does_not_hold_up() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = [socket.socket() for _ in range(4)]
        for client in clients:  # until the backlog is full: no process accepts
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.05)
        before = time.monotonic()
        assert not slurmd_answers("127.0.0.1", server.getsockname()[1], 0.3)
        assert time.monotonic() - before < 2
        for client in clients:
            client.close()


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
