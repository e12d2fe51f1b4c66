"""The launcher's line to the agent on its node, and through it to the control plane.

Belongs here: saying what the gang is and how launches ended, and remembering what was answered. Must not: judging, or
waiting: without an agent or a control plane the launcher goes on by itself, and what they missed is told later.

It speaks the messages of `understudy_agent.rank_messages` without importing them: this package needs Python alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONNECT_SECONDS = 1.0
"""Between two tries to reach the agent."""
CONNECT_SECONDS_MAX = 30.0
"""Where it hangs up at once: it will not have us."""
ABSENT_SECONDS = 3.0
"""So long an agent may take to appear before it is said that there is none."""
REPEAT_SECONDS = 10.0
NOTICES_MAX = 256
LINE_BYTES_MAX = 4 * 1024 * 1024

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartAnew:
    """The control plane's order to start the gang anew, though no rank of it has ended."""

    launch: int
    """This one, or an earlier one, is to end."""
    reason: str
    without: tuple[str, ...] = ()
    """Nodes that give their seat to a spare, where there is one."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What the launcher says of itself."""

    launch: int
    phase: str
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    lost: tuple[str, ...]
    nodes_min: int

    def message(self) -> Message:
        return {
            "launch": self.launch,
            "phase": self.phase,
            "seats": self.seats,
            "spares": self.spares,
            "lost": self.lost,
            "nodes_min": self.nodes_min,
        }


class AgentLine:
    """Nothing here waits, and nothing that goes wrong here reaches the gang."""

    def __init__(self, path: str, job_id: int, restart_count: int) -> None:
        self._path = path
        self._job = {"job_id": job_id, "restart_count": restart_count}
        self._opened = time.monotonic()
        self._connection: socket.socket | None = None
        self._connect_at = 0.0
        self._pause = CONNECT_SECONDS
        self._received = b""
        self._outgoing = b""
        self._gang: Gang | None = None
        self._told: Gang | None = None
        self._notices: OrderedDict[int, Message] = OrderedDict()
        self._sent_at: dict[int, float] = {}
        self._next_id = 0
        self._bad: Mapping[str, str] = {}
        self._anew: StartAnew | None = None
        self._progress: tuple[int, int] | None = None
        self._answers: bool | None = None
        self._restore: tuple[int, str] = (0, "")
        self._complained = False
        self.refused = ""
        """What the agent said last when it would not have us."""
        self.heard = False
        """The control plane has spoken."""
        self.launches_without_progress = 0
        """In earlier allocations of this job. For `take_over`."""
        self.best_step: int | None = None

    # -- what the control plane says -----------------------------------------------------------------------------

    def poll(self) -> Mapping[str, str]:
        """Its verdicts, as of the last word. They stand while the line is broken."""
        return self._bad

    def step(self) -> int | None:
        """The furthest that the present launch has finished; None: its ranks tell nothing."""
        if self._progress is None or self._gang is None or self._progress[0] != self._gang.launch:
            return None
        return self._progress[1]

    @property
    def silent(self) -> bool:
        """The control plane was heard, and is not now."""
        return self._answers is False or (self._answers is True and self._connection is None)

    def restore_point(self) -> tuple[int, str] | None:
        """Where a launch goes on that begins now: step and path. None: its ranks are to ask the control plane.

        While that is silent it is the newest good checkpoint that it named: all ranks get the same one, at once. A
        checkpoint that was complete stays complete; what has been said against it since then is not known.
        """
        return self._restore if self.silent and self._restore[1] else None

    def anew(self, launch: int) -> StartAnew | None:
        """An order that means this launch."""
        return self._anew if self._anew is not None and self._anew.launch >= launch else None

    def trouble(self) -> str:
        """Once: why nobody hears us; empty: somebody does, or it was said."""
        if self._complained or self._connection is not None or time.monotonic() - self._opened < ABSENT_SECONDS:
            return ""
        self._complained = True
        return self.refused or f"no agent at {self._path}"

    # -- what we say ---------------------------------------------------------------------------------------------

    def tell(self, gang: Gang) -> None:
        """What the gang is now. Said again where it changed."""
        self._gang = gang

    def notice(self, what: str, **fields: object) -> None:
        """Something that happened once: said until the control plane has it on disk."""
        self._next_id += 1
        self._notices[self._next_id] = {"type": what, "id": self._next_id, "at": time.time(), **fields}
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)

    @property
    def unsaid(self) -> int:
        return len(self._notices)

    # -- the connection ------------------------------------------------------------------------------------------

    def turn(self) -> socket.socket | None:
        """Do what can be done now. The connection, where there is one: whoever waits may wait for it, too."""
        try:
            self._connect()
            if self._connection is not None:
                self._say()
                self._read(self._connection)
                self._say()
        except OSError as error:
            self._lose(error)
        return self._connection

    def close(self) -> None:
        """What is there to say is said, as far as that goes without waiting."""
        self.turn()
        self._drop()

    def _connect(self) -> None:
        """Raises OSError."""
        now = time.monotonic()
        if self._connection is not None or now < self._connect_at:
            return
        self._connect_at = now + self._pause
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        if connection.connect_ex(self._path) not in (0, errno.EINPROGRESS):
            connection.close()
            return
        self._connection = connection
        self._received = self._outgoing = b""
        self._told = None
        self._sent_at.clear()

    def _say(self) -> None:
        """Raises OSError."""
        if self._connection is None or self._gang is None:
            return
        if self._gang != self._told:
            self._queue({"type": "launcher", **self._job, **self._gang.message()})
            self._told = self._gang
        now = time.monotonic()
        for number, message in self._notices.items():
            if now - self._sent_at.get(number, float("-inf")) > REPEAT_SECONDS:
                self._sent_at[number] = now
                self._queue(message)
        if self._outgoing:
            with contextlib.suppress(BlockingIOError):
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]

    def _queue(self, message: Message) -> None:
        self._outgoing += json.dumps(message).encode() + b"\n"

    def _read(self, connection: socket.socket) -> None:
        """Raises OSError."""
        while True:
            try:
                piece = connection.recv(65536)
            except BlockingIOError:
                return
            if not piece:
                raise ConnectionError("the agent hung up")
            *lines, self._received = (self._received + piece).split(b"\n")
            if len(self._received) > LINE_BYTES_MAX:
                raise ConnectionError("a line without an end")
            for line in lines:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        """Raises ConnectionError where it makes no sense."""
        try:
            message = json.loads(line)
            what = message["type"]
            if what == "word":
                self._heed(message)
            elif what == "standing":
                self._restore = (int(message.get("restore_step", 0)), str(message.get("restore_path", "")))
                if message["heard"] or self._answers is not None:
                    self._answers = bool(message["heard"])
            elif what == "progress":
                self._progress = (int(message["launch"]), int(message["step"]))
            elif what == "ack" or (what == "error" and message.get("id") is not None):
                self._notices.pop(message["id"], None)
            elif what == "error":
                self.refused = str(message.get("error"))
                self._pause = CONNECT_SECONDS_MAX
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConnectionError(f"the agent's answer is not understood: {error!r}") from error

    def _heed(self, word: Message) -> None:
        anew = word.get("anew")
        self._bad = {str(node): str(why) for node, why in word["bad"].items()}
        self._anew = None
        if anew is not None:
            without = tuple(str(node) for node in anew.get("without", ()))
            self._anew = StartAnew(int(anew["launch"]), str(anew["reason"]), without)
        self.launches_without_progress = int(word.get("launches_without_progress", 0))
        self.best_step = word.get("best_step")
        self.heard = True
        self.refused = ""
        self._pause = CONNECT_SECONDS

    def _lose(self, error: OSError) -> None:
        self.refused = self.refused or f"{self._path}: {error}"
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._connect_at = time.monotonic() + self._pause
