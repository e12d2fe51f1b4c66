"""The launcher's port as a target: a stranger, or a seat that knows the secret, sends anything."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from dataclasses import replace
from functools import cache

from tests.launch.keys import JOB_KEY
from understudy_launcher.agent_client import AgentLine
from understudy_launcher.event_log import Events
from understudy_launcher.hub import Hub, open_server
from understudy_launcher.launch import Launch
from understudy_launcher.nodes import Nodes
from understudy_launcher.options import parse
from understudy_launcher.protocol import encode
from understudy_launcher.reports import Reports
from understudy_launcher.saved_state import StepMemory
from understudy_launcher.seat_messages import SeatMessages
from understudy_launcher.slurm import Allocation
from understudy_launcher.slurm_steps import Steps
from understudy_launcher.standbys import Standbys

KEY = replace(JOB_KEY, secret="understudy")
"""The same in each run, so that inputs can be kept."""
PLAIN, ENCRYPTED = b"p", b"e"
"""First byte of an input. What follows is sent as it is, or as a program sends it that begins with a handshake."""
HELLO = encode("hello", secret=KEY.secret, generation=0, step="1", node="n1", address="127.0.0.1", port=20_000, gpus=8)
SECONDS_MAX = 5.0


class NotPrinted(Events):
    def report(self, event: str, message: str, **fields: object) -> None:
        self.note(event, message=message.encode().decode(), **fields)


class Port:
    """A launcher that waits for its seats, n1 and n2, and never decides anything."""

    def __init__(self) -> None:
        self.hub = Hub(KEY, open_server())
        options, names = parse(["--nodes", "2", "--", "true"]), ("n1", "n2")
        events, line = NotPrinted(None), AgentLine("/nowhere", 1, 0)
        nodes = Nodes(names, [], events)
        steps = Steps(self.hub, Allocation("1", names, 8), options, KEY)
        step = steps.resume([StepMemory(0, names, os.getpid(), time.monotonic(), "1", False)])[0]
        standbys = Standbys(options, nodes, steps)
        self.seats = SeatMessages(options, self.hub, steps, standbys, Reports(options, names, events, line))
        self.launch = Launch(0, names, step, time.monotonic())

    def converse(self, content: bytes, encrypted: bool) -> None:
        """Until the program has gone. Its connection is forgotten then."""
        deadline = time.monotonic() + SECONDS_MAX
        with socket.create_connection(("127.0.0.1", self.hub.port)) as link:
            link.setblocking(False)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            program = context.wrap_socket(link, do_handshake_on_connect=False) if encrypted else link
            with program:
                while isinstance(program, ssl.SSLSocket) and time.monotonic() < deadline:
                    self.turn()
                    with contextlib.suppress(ssl.SSLWantReadError):
                        program.do_handshake()
                        break
                with contextlib.suppress(OSError):
                    program.send(content)
                self.turn()
        while self.hub._unverified and time.monotonic() < deadline:
            self.turn()
        assert not self.hub._unverified, "a connection of a program that has gone is still held"

    def turn(self) -> None:
        for link, message in self.hub.wait(0.0):
            self.seats.receive(link, message, self.launch)


@cache
def _port() -> Port:
    return Port()


def reach_launcher(content: bytes) -> None:
    """Whatever a program sends ends its own connection at most, and no message of a seat ends the launcher."""
    _port().converse(content[1:], content[:1] != PLAIN)


SEEDS = (
    PLAIN + HELLO,
    ENCRYPTED + HELLO.replace(KEY.secret.encode(), b"wrong"),
    ENCRYPTED
    + HELLO.replace(b"}", b', "checked": ["", ""], "again": {"launch": 0, "running": true, "ended": [[0, 1]]}}'),
    ENCRYPTED
    + HELLO
    + encode("started", warm=True, kept=0, at=1.5)
    + encode("exited", local_rank=0, status=1)
    + encode("last_words", local_rank=0, text="an error")
    + encode("evidence", ranks=[{"rank": 0, "node": "n1", "stacks": "x", "records": [], "kernel": ""}])
    + encode("signalled", number=10)
    + encode("warm", failed=None)
    + encode("gone", port=20_001),
)
