"""A node's sign of life is a connection that is accepted, and nothing else."""

from __future__ import annotations

import socket
import time

from understudy_controlplane.observe.slurmd_probe import slurmd_answers


def test_a_listening_slurmd_answers_and_a_closed_port_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert slurmd_answers("127.0.0.1", port, 1.0)
    assert not slurmd_answers("127.0.0.1", port, 1.0)


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
