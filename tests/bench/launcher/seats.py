"""All seats of one step in one process, speaking the true protocol; also Slurm's other commands, named by the first
argument.

Seats beat, start no ranks, and leave when they are ordered to. SIGUSR1 ends the second seat, as a dead node would.
Lines of JSON in `$BENCH_HOME/seats.jsonl`: when the first seat connected, and when the last one was ordered to go.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy_controlplane.hostlist import expand
from understudy_launcher.protocol import (
    BEAT,
    BEAT_SECONDS,
    RESTING_BEAT_SECONDS,
    SECRET_VARIABLE,
    Lines,
    Message,
    encode,
)

HOME = Path(os.environ.get("BENCH_HOME", "."))
LOOK_SECONDS = 0.01
"""How often this process looks whose beat is due: beats of many nodes do not come all at once."""
CONNECTING_MAX = 200
"""Slurm starts the tasks of a large step in a tree, not all in the same moment."""


def source_address(number: int) -> str:
    """Each seat comes from an address of its own, as on a cluster."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


class Seat:
    def __init__(self, node: str, number: int) -> None:
        self.node, self.number = node, number
        self.socket = socket.socket()
        self.lines = Lines()
        self.encrypted = self.proven = False
        self.beat_seconds = BEAT_SECONDS
        self.beaten = 0.0


class Step:
    def __init__(self, nodes: Sequence[str], port: int, generation: int) -> None:
        self.nodes, self.port, self.generation = nodes, port, generation
        self.secret = os.environ[SECRET_VARIABLE]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies nothing: what that costs is the seats' time
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.selector = selectors.DefaultSelector()
        self.open: dict[str, Seat] = {}
        self.waiting = list(reversed(list(enumerate(nodes))))
        self.connecting = 0
        self.gone: dict[int, set[str]] = {}
        self.first_at = time.time()
        self.lose = False

    def run(self) -> None:
        looked = 0.0
        while self.open or self.waiting:
            while self.waiting and self.connecting < CONNECTING_MAX:
                number, node = self.waiting.pop()
                self.connect(Seat(node, number))
            for key, _ in self.selector.select(LOOK_SECONDS):
                self.serve(key.data)
            if self.lose:
                self.lose = False
                note(event="lost", node=self.nodes[1], at=time.time())
                self.close(self.open[self.nodes[1]])
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                looked = now
                for seat in [one for one in self.open.values() if one.proven and now - one.beaten >= one.beat_seconds]:
                    seat.beaten = now
                    self.write(seat, BEAT)

    def connect(self, seat: Seat) -> None:
        seat.socket.setblocking(False)
        seat.socket.bind((source_address(seat.number), 0))
        status = seat.socket.connect_ex(("127.0.0.1", self.port))
        assert status in {0, errno.EINPROGRESS}, os.strerror(status)
        self.open[seat.node] = seat
        self.connecting += 1
        self.selector.register(seat.socket, selectors.EVENT_WRITE, seat)

    def serve(self, seat: Seat) -> None:
        if seat.node not in self.open:
            return
        try:
            if not isinstance(seat.socket, ssl.SSLSocket):
                self.selector.unregister(seat.socket)
                seat.socket = self.context.wrap_socket(seat.socket, do_handshake_on_connect=False)
                self.selector.register(seat.socket, selectors.EVENT_READ, seat)
            if not seat.encrypted:
                seat.socket.do_handshake()
                seat.encrypted = True
                own = {"node": seat.node, "address": source_address(seat.number), "port": 20_000, "gpus": 8}
                greeting = {"secret": self.secret, "generation": self.generation, "step": str(self.generation)}
                self.send(seat, "hello", **greeting, **own)
                return
            piece = seat.socket.recv(1 << 16)
        except ssl.SSLWantReadError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.close(seat)
            return
        for message in seat.lines.feed(piece):
            self.take(seat, message)

    def take(self, seat: Seat, message: Message) -> None:
        match message["type"]:
            case "beat" if not seat.proven:
                seat.proven = True
                self.connecting -= 1
            case "pace":
                seat.beat_seconds = RESTING_BEAT_SECONDS if message["resting"] else BEAT_SECONDS
            case "go":
                seat.beat_seconds = BEAT_SECONDS
                self.went(seat, message["launch"], message["nodes"])
                self.send(seat, "started", warm=True, kept=0, at=time.time())
            case "kill" | "keep":
                self.send(seat, "gone")
            case "leave":
                self.close(seat)

    def went(self, seat: Seat, launch: int, nodes: int) -> None:
        gone = self.gone.setdefault(launch, set())
        gone.add(seat.node)
        if len(gone) == nodes:
            note(event="go", launch=launch, at=time.time(), first_at=self.first_at)

    def send(self, seat: Seat, kind: str, **fields: object) -> None:
        self.write(seat, encode(kind, **fields))

    def write(self, seat: Seat, line: bytes) -> None:
        try:
            seat.socket.send(line)
        except OSError:
            self.close(seat)

    def close(self, seat: Seat) -> None:
        if self.open.pop(seat.node, None) is not None:
            self.selector.unregister(seat.socket)
            seat.socket.close()
            self.connecting -= not seat.proven
            if not seat.proven:  # it took too long on a busy machine: Slurm's tasks would have a processor each
                self.waiting.append((seat.number, seat.node))


def note(**fields: Any) -> None:
    with (HOME / "seats.jsonl").open("a") as file:
        file.write(json.dumps(fields) + "\n")


def srun(arguments: list[str]) -> int:
    listed = next(one for one in arguments if one.startswith("--nodelist=")).partition("=")[2]
    options = dict(one[2:].split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
    step = Step(expand(listed), int(options["port"]), int(options["generation"]))
    (HOME / f"step.{step.generation}").write_text(str(os.getpid()))

    def lose(*_: object) -> None:
        step.lose = True

    signal.signal(signal.SIGUSR1, lose)
    step.run()
    return 0


def scontrol(arguments: list[str]) -> int:
    print("\n".join(expand(arguments[2])) if arguments[:2] == ["show", "hostnames"] else "#SBATCH --no-kill")
    return 0


def scancel(arguments: list[str]) -> int:
    with contextlib.suppress(OSError):
        os.kill(int((HOME / f"step.{arguments[1].partition('.')[2]}").read_text()), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol, "scancel": scancel}[sys.argv[1]](sys.argv[2:]))
