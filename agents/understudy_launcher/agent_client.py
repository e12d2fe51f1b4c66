"""The launcher's connection to the agent on its node, and through it to the control plane.

Nothing here judges or waits. Without an agent or a control plane the launcher works on its own, and reports later what
they missed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy_launcher.checkpoint_files import NamedCheckpoints
from understudy_launcher.launch_over import Stepped
from understudy_launcher.messages import (
    LauncherState,
    LaunchFact,
    LaunchNotice,
    Message,
    NamesTooLongError,
    within_a_line,
)
from understudy_launcher.protocol import Lines
from understudy_wire.errors import ProtocolError

CONNECT_SECONDS = 1.0
"""Pause between two attempts to reach the agent."""
CONNECT_SECONDS_MAX = 30.0
"""The pause after the agent has refused this launcher."""
ABSENT_SECONDS = 3.0
"""An agent may take this long to appear before the launcher reports that there is none."""
REPEAT_SECONDS = 10.0
CLOSE_LOOK_SECONDS = 0.05
CLOSE_LOOKS = 40
"""Looks at the end of the launcher, for an agent that is being restarted."""
NOTICES_MAX = 256
LINE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Restart:
    """The control plane's order to restart the gang, although no rank of it has ended."""

    launch: int
    """This launch, or an earlier one, must end."""
    reason: str
    without: tuple[str, ...] = ()
    """Nodes that a spare replaces, where there is one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the groups of ranks, as "tp=16", and the domains of each node: the order of ranks follows from them."""

    group_sizes: str
    domains: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Orders:
    """All orders of the control plane that are valid now."""

    bad: Mapping[str, str] = field(default_factory=dict)
    restart: Restart | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    """Node that the gang leaves → the spare that costs the gang least in its place."""
    layout: Layout | None = None
    """None: the order of ranks makes no difference, as far as is known."""
    may_shrink: bool = False


class AgentLine:
    """Nothing here waits, and no error here reaches the gang."""

    def __init__(self, path: str, job_id: int, restart_count: int) -> None:
        self.job_id = job_id
        self.restart_count = restart_count
        self._path = path
        self._opened = time.monotonic()
        self._connection: socket.socket | None = None
        self._connect_at = 0.0
        self._pause = CONNECT_SECONDS
        self._received = Lines(LINE_BYTES_MAX)
        self._outgoing = b""
        self._state: LauncherState | None = None
        self._state_sent: LauncherState | None = None
        self._notices: OrderedDict[int, LaunchNotice] = OrderedDict()
        self._sent_at: dict[int, float] = {}
        self._next_id = 0
        self.orders = Orders()
        self._progress: tuple[int, int] = (-1, -1)
        self.count_from = 0
        """What has to be taken off its step for the number that the program gave it."""
        self._stepped_at = 0.0
        self._heard_again_at = 0.0
        """When the control plane last answered after it had not."""
        self._control_plane_answers: bool | None = None
        """None: it has not answered yet."""
        self._checkpoints = NamedCheckpoints()
        self._complained = False
        self.refused = ""
        """Why the agent refused this launcher, or could not be reached."""
        self.has_orders = False
        """The control plane has sent orders at least once."""
        self.launches_without_progress = 0
        """Budget that the job's earlier allocations have used up. `Budget.take_over` reads it."""
        self.best_step: int | None = None
        self.newcomers: frozenset[str] = frozenset()
        """Nodes of the allocation on which the job never finished a step; none: it did on all, or that is not known."""

    # -- from the control plane ----------------------------------------------------------------------------------

    def poll(self) -> Mapping[str, str]:
        """Its verdicts, as last received. They stay valid while the connection is broken."""
        return self.orders.bad

    @property
    def may_shrink(self) -> bool:
        """The site allows a gang whose job does so, too, to continue with fewer nodes: no other node fits it now. While
        the control plane is silent, that is not known.
        """
        return self.orders.may_shrink and not self.silent

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def step(self) -> int | None:
        """The furthest step that the present launch has finished; None: its ranks report no steps."""
        if self._state is None or self._progress[0] != self._state["launch"]:
            return None
        return self._progress[1]

    def stepped(self) -> Stepped:
        if self.step() is None:
            return Stepped()
        return Stepped(self._stepped_at, None if self.silent else max(self._stepped_at, self._heard_again_at))

    @property
    def silent(self) -> bool:
        """The control plane has answered before, and does not now."""
        return self._control_plane_answers is False or (
            self._control_plane_answers is True and self._connection is None
        )

    def restore_point(self, ranks: int = 0) -> tuple[int, str] | None:
        """Step and path from which a launch of so many ranks that begins now continues. None: its ranks ask the control
        plane.

        While the control plane is silent, it is the newest good checkpoint that it named and that is still there: all
        ranks get the same one, at once, and none of them looks for itself. A checkpoint that was complete stays
        complete; what has been reported against it since is not known.
        """
        return self._checkpoints.newest(ranks) if self.silent else None

    def restart(self, launch: int) -> Restart | None:
        """An order to restart that is about this launch."""
        restart = self.orders.restart
        return restart if restart is not None and restart.launch >= launch else None

    def trouble(self) -> str:
        """Returned once: why no agent listens. Empty: one does, or the reason was returned before."""
        if self._complained or self._connection is not None or time.monotonic() - self._opened < ABSENT_SECONDS:
            return ""
        self._complained = True
        return self.refused or f"no agent at {self._path}"

    # -- to the control plane ------------------------------------------------------------------------------------

    def report(self, state: LauncherState) -> None:
        """The gang as it is now. Sent where it has changed."""
        self._state = state

    def announce(self, fact: LaunchFact) -> None:
        """Sent until the control plane has it in its database."""
        self._next_id += 1
        self._notices[self._next_id] = {"type": "launch", "id": self._next_id, "fact": fact}
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)

    @property
    def notices(self) -> tuple[LaunchNotice, ...]:
        """Notices that are not acknowledged."""
        return tuple(self._notices.values())

    def resume(self, notices: Sequence[LaunchNotice]) -> None:
        self._notices = OrderedDict((one["id"], one) for one in notices)
        self._next_id = max(self._notices, default=0)

    # -- the connection ------------------------------------------------------------------------------------------

    def turn(self) -> socket.socket | None:
        """Do what can be done now. Returns the connection, where there is one, for the caller to wait for."""
        try:
            self._connect()
            if self._connection is not None:
                self._send()
                self._receive(self._connection)
                self._send()
        except OSError as error:
            self._lose(error)
        return self._connection

    def close(self) -> bool:
        """Sends what is queued, and waits a little for an agent that was there. Returns whether it has it all, or never
        was there.
        """
        known = self._control_plane_answers is not None
        looks = CLOSE_LOOKS if known else 1
        while (self.turn() is None or self._outgoing) and (looks := looks - 1):
            time.sleep(CLOSE_LOOK_SECONDS)
        sent = self._connection is not None and not self._outgoing
        self._drop()
        return sent or not known

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
        self._heard_again_at = now
        self._received, self._outgoing = Lines(LINE_BYTES_MAX), b""
        self._state_sent = None
        self._sent_at.clear()

    def _send(self) -> None:
        """Raises OSError."""
        if self._connection is None or self._state is None:
            return
        if self._state != self._state_sent:
            self._queue(self._state)
            self._state_sent = self._state
        now = time.monotonic()
        for number, notice in self._notices.items():
            if now - self._sent_at.get(number, float("-inf")) > REPEAT_SECONDS:
                self._sent_at[number] = now
                self._queue(notice)
        if self._outgoing:
            with contextlib.suppress(BlockingIOError):
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]

    def _queue(self, message: Message) -> None:
        """Raises ConnectionError where the message does not fit into a line: the agent would refuse it."""
        try:
            self._outgoing += json.dumps(within_a_line(message)).encode() + b"\n"
        except NamesTooLongError as error:
            self._pause = CONNECT_SECONDS_MAX
            raise ConnectionError(str(error)) from error

    def _receive(self, connection: socket.socket) -> None:
        """Raises OSError."""
        while True:
            try:
                piece = connection.recv(65536)
            except BlockingIOError:
                return
            if not piece:
                raise ConnectionError("the agent closed the connection")
            try:
                for message in self._received.feed(piece):
                    self._take(message)
            except ProtocolError as error:
                raise ConnectionError(f"the agent's answer is not understood: {error}") from error

    def _take(self, message: dict[str, Any]) -> None:
        """Raises ConnectionError where the message cannot be understood."""
        try:
            match message["type"]:
                case "answer":
                    self._take_answer(message)
                case "silent":
                    if self._control_plane_answers:
                        self._control_plane_answers = False
                case "progress":
                    self._note_step(int(message["launch"]), int(message["step"]), int(message.get("count_from", 0)))
                case "error" if message.get("id") is None:
                    self.refused = str(message.get("error"))
                    self._pause = CONNECT_SECONDS_MAX
                case "ack" | "error":
                    self._notices.pop(message["id"], None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConnectionError(f"the agent's answer is not understood: {error!r}") from error

    def _take_answer(self, answer: dict[str, Any]) -> None:
        """`wire.LauncherAnswer`, in which fields that have their default are left out."""
        if not self._control_plane_answers:
            self._heard_again_at = time.monotonic()
        self._control_plane_answers = True
        step, path, ranks = (answer.get(f"restore_{name}") for name in ("step", "path", "ranks"))
        self._checkpoints.note(int(step or 0), str(path or ""), int(ranks or 0))
        if answer.get("step") is not None:
            self._note_step(int(answer.get("launch", 0)), int(answer["step"]), int(answer.get("count_from", 0)))
        if answer.get("orders") is None:  # the earlier orders stand
            return
        self.orders = _orders(answer["orders"])
        earlier = answer.get("earlier", {})
        self.launches_without_progress = int(earlier.get("launches_without_progress", 0))
        self.best_step = earlier.get("best_step")
        self.newcomers = frozenset(str(node) for node in earlier.get("newcomers", ()))
        self.has_orders = True
        self.refused = ""
        self._pause = CONNECT_SECONDS

    def _note_step(self, launch: int, step: int, count_from: int) -> None:
        if (launch, step) > self._progress:
            self._progress, self._stepped_at = (launch, step), time.monotonic()
            self.count_from = count_from

    def _lose(self, error: OSError) -> None:
        self.refused = self.refused or f"{self._path}: {error}"
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._connect_at = time.monotonic() + self._pause


def _orders(message: dict[str, Any]) -> Orders:
    bad = {str(node): str(why) for node, why in message.get("bad", {}).items()}
    places = {str(node): str(spare) for node, spare in message.get("places", {}).items()}
    restart = message.get("restart")
    layout = _layout(message["layout"]) if message.get("layout") is not None else None
    may_shrink = bool(message.get("may_shrink", False))
    if restart is None:
        return Orders(bad, None, places, layout, may_shrink)
    without = tuple(str(node) for node in restart.get("without", ()))
    return Orders(bad, Restart(int(restart["launch"]), str(restart["reason"]), without), places, layout, may_shrink)


def _layout(message: dict[str, Any]) -> Layout:
    domains = {str(node): [str(one) for one in labels] for node, labels in message.get("domains", {}).items()}
    return Layout(str(message.get("group_sizes", "")), domains)
