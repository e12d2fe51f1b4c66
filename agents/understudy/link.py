"""The connection to the node's agent: a daemon thread that sends what is in the outbox and reads the answers.

It reconnects after the agent was away, sends hello again and repeats every notice that was not acknowledged. No error
here reaches the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from .identity import Identity
from .never_raise import log
from .outbox import Outbox, collective_message
from .release import RELEASE

SEND_EVERY_SECONDS = 0.25
LOOK_EVERY_SECONDS = 0.05
"""Time between looks for the rank's process groups, until they are there or its first step has ended."""
REPEAT_AFTER_SECONDS = 30.0
SEND_TIMEOUT_SECONDS = 5.0
CONNECT_AGAIN_SECONDS = (0.25, 0.5, 1.0, 2.0)
ANSWER_BYTES_MAX = 65_536

NOTHING_SENT: dict[str, dict[str, Any]] = {
    "section": {"type": "section", "name": ""},
    "gpu": {"type": "gpu", "uuid": ""},
    "program": {"type": "program", "packed": ""},
    "inputs": {"type": "inputs"},
}
"""What an agent takes for granted."""

SHARE_OUTPUT = "UNDERSTUDY_SHARE_OUTPUT"
"""0: neither stacks, output nor texts of exceptions of this job leave its nodes; the launcher obeys it, too."""


class Link:
    def __init__(
        self, path: str, hello: dict[str, Any], outbox: Outbox, on_answer: Callable[[dict[str, Any]], None]
    ) -> None:
        """`on_answer` is called from the link's thread with every answer that carries an id."""
        self._path = path
        self._hello = hello
        self._outbox = outbox
        self._on_answer = on_answer
        self._socket: socket.socket | None = None
        self._received = b""
        self._sent_at: dict[int, float] = {}
        self._sent = dict(NOTHING_SENT)
        """The last message of each type, to the agent that is connected."""
        self._program: str | None = None
        self._failures = 0
        self._connect_at = 0.0
        self._warned: set[str] = set()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._closing = threading.Event()
        self.connected = threading.Event()
        """Set since the first connection to an agent."""
        self._lost_at: float | None = None
        """When the last connection ended, while there is none."""
        self._thread = threading.Thread(target=self._run, name="understudy-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Sends at once instead of at the next interval."""
        with contextlib.suppress(OSError):  # full: the thread is awake already; closed: it has ended
            self._waker.send(b"\0")

    def close(self, timeout_seconds: float) -> None:
        """Sends what is in the outbox, then ends the thread."""
        self._closing.set()
        self.wake()
        self._thread.join(timeout_seconds)

    def away_seconds(self) -> float:
        """How long the agent to which this was connected has been away."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def abandon(self) -> None:
        """Called in the child of a fork: the thread does not exist there, and the connection belongs to the parent."""
        self._disconnect()
        self._woken.close()
        self._waker.close()

    def warn_once(self, topic: str, message: str, *arguments: object) -> None:
        """One warning for each topic in the life of this process: training logs are long enough."""
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning("understudy: " + message, *arguments)

    def _run(self) -> None:
        try:
            self._exchange()
        finally:
            self._disconnect()
            self._woken.close()
            self._waker.close()

    def _exchange(self) -> None:
        while True:
            closing = self._closing.is_set()
            try:
                self._send_and_receive(wait_seconds=0.0 if closing else self._pause_seconds())
            except OSError as error:
                self._connection_lost(error)
                if not closing:
                    self._sleep(SEND_EVERY_SECONDS)
            except Exception as error:  # noqa: BLE001 - a fault in the hook must not end the link
                self.warn_once("bug", "the link to the agent failed and reconnects: %r", error)
                self._connection_lost(error)
            if closing:
                return

    def _pause_seconds(self) -> float:
        if self._outbox.first_step_open:
            self._outbox.look_for_communicator()
        waits = self._outbox.first_step_open and self._outbox.communicator_at is None
        return LOOK_EVERY_SECONDS if waits else SEND_EVERY_SECONDS

    def _send_and_receive(self, wait_seconds: float) -> None:
        if self._socket is None:
            if time.monotonic() < self._connect_at:
                self._sleep(wait_seconds)
                return
            self._socket = self._connect()
        connection = self._socket
        self._outbox.check_values()
        for message in self._outbox.take_steps():
            _send(connection, message)
        self._send_changed(connection)
        self._send_stack(connection)
        self._send_training(connection)
        self._send_notices(connection)
        readable, _, _ = select.select([connection, self._woken], [], [], wait_seconds)
        if self._woken in readable:
            self._woken.recv(4096)
        if connection in readable:
            self._receive(connection)

    def _sleep(self, seconds: float) -> None:
        readable, _, _ = select.select([self._woken], [], [], seconds)
        if readable:
            self._woken.recv(4096)

    def _connect(self) -> socket.socket:
        """Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Not settimeout: with it connect() fails at once while the agent's queue is full.
            seconds = struct.pack("ll", int(SEND_TIMEOUT_SECONDS), 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
            connection.connect(self._path)
            connection.settimeout(SEND_TIMEOUT_SECONDS)
            _send(connection, self._hello)
        except OSError:
            connection.close()
            raise
        self._received = b""
        self._sent_at.clear()
        self._sent = dict(NOTHING_SENT)
        self._failures = 0
        self._lost_at = None
        self.connected.set()
        return connection

    def _connection_lost(self, error: Exception) -> None:
        if not self.connected.is_set():
            self.warn_once("absent", "no agent at %s (%s): nothing is reported until one runs", self._path, error)
        self._disconnect()
        pause_seconds = CONNECT_AGAIN_SECONDS[min(self._failures, len(CONNECT_AGAIN_SECONDS) - 1)]
        self._failures += 1
        self._connect_at = time.monotonic() + pause_seconds

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._lost_at = time.monotonic()

    def _send_changed(self, connection: socket.socket) -> None:
        """Sends what differs from what this agent was sent before."""
        outbox = self._outbox
        entered, saves = outbox.collectives.latest(), outbox.save_steps.report()
        now = (
            collective_message(entered) if entered is not None else None,
            {"type": "section", "name": outbox.section},
            {"type": "gpu", "uuid": outbox.gpu_uuid},
            {"type": "program", "packed": self._name_program()},
            {"type": "inputs", **outbox.inputs},
            {"type": "saves", **saves} if saves is not None else None,
            outbox.recorder.latest(time.monotonic(), outbox.stall.since),
            outbox.inspector.message,
        )
        for message in filter(None, now):
            if message != self._sent.get(message["type"]):
                self._sent[message["type"]] = message
                _send(connection, message)

    def _name_program(self) -> str:
        """Asked for once. Empty: it is not known yet, or cannot be read."""
        if self._program is None and self._outbox.program is not None:
            try:
                self._program = self._outbox.program()
            except Exception:  # noqa: BLE001 - a module that is loaded late may raise anything: a start is slower, no more
                self._program = ""
        return self._program or ""

    def _send_stack(self, connection: socket.socket) -> None:
        stack = self._outbox.stall.stack(time.monotonic())
        if stack and os.environ.get(SHARE_OUTPUT) != "0":
            _send(connection, {"type": "stack", "text": stack})

    def _send_training(self, connection: socket.socket) -> None:
        message = self._outbox.training.due(time.monotonic())
        if message is not None:
            _send(connection, message)

    def _send_notices(self, connection: socket.socket) -> None:
        now = time.monotonic()
        for notice in self._outbox.ready_notices():
            sent_at = self._sent_at.get(notice["id"])
            if sent_at is None or now - sent_at > REPEAT_AFTER_SECONDS:
                _send(connection, notice)
                self._sent_at[notice["id"]] = now

    def _receive(self, connection: socket.socket) -> None:
        chunk = connection.recv(ANSWER_BYTES_MAX)
        if not chunk:
            raise ConnectionResetError("the agent closed the connection")
        *lines, self._received = (self._received + chunk).split(b"\n")
        if len(self._received) > ANSWER_BYTES_MAX:
            raise ConnectionError("the agent's answer is too long")
        for line in lines:
            answer = json.loads(line)
            if answer.get("type") == "save_order":
                self._outbox.save_steps.take(answer)
            elif answer.get("type") == "compute_test_order":
                self._outbox.training.test_after = int(answer["step"])
            elif answer.get("type") == "hang_question":
                self._outbox.recorder.ask(time.monotonic())
                self._outbox.stall.ask()
            elif answer.get("type") == "job_note":
                self.warn_once(f"note {answer['key']}", "%s", answer["text"])
            elif answer.get("id") is None and answer.get("type") != "error":
                self.warn_once("newer", "an answer of type %s is ignored; only newer hooks know it", answer.get("type"))
            elif answer.get("id") is None:
                self.warn_once("refused", "the agent refuses a message of this rank: %s", answer.get("error"))
            else:
                self._sent_at.pop(answer["id"], None)
                self._on_answer(answer)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def hello_message(identity: Identity, gpu_index: int | None, role: str, dp_rank: int | None = None) -> dict[str, Any]:
    rank = {**identity._asdict(), "pid": os.getpid(), "gpu_index": gpu_index, "role": role, "dp_rank": dp_rank}
    takes = dict.fromkeys(("takes_orders", "takes_tests", "takes_notes", "takes_questions"), True)
    return {"type": "hello", **rank, "release": RELEASE, **takes}
