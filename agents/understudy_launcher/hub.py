"""The launcher's end of its connections to the seats: it verifies who connects, and collects messages."""

from __future__ import annotations

import random
import secrets
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from understudy_launcher.first_check import Checked
from understudy_launcher.ports import bind_a_port
from understudy_launcher.protocol import BEAT, BEAT_SECONDS, LINE_BYTES_MAX, Lines, Message, encode, number, text
from understudy_launcher.spread_timer import Turns
from understudy_wire.errors import ProtocolError
from understudy_wire.tls import JobKey, is_secret, launcher_context

STRANGERS_MAX = 256
"""Connections whose other side is unverified. At the limit nothing is accepted: seats wait in the kernel's queue."""
STRANGERS_OF_AN_ADDRESS_MAX = 16
UNPROVEN_SECONDS = 10.0
OVERDUE_SECONDS = 1.0
"""An unverified connection that is older makes room where others wait."""
STRANGER_BYTES_MAX = 4096
ACCEPTED_AT_ONCE_MAX = 32
HANDSHAKE_SECONDS_A_PASS = 0.004
"""A handshake takes 0.2 ms. What is left of them after this time waits for the next pass of the loop."""
NO_FILES_SECONDS = 0.2
LAUNCHER_BEAT_SECONDS = 30.0
"""A seat waits for two minutes..."""
FREQUENT_BEAT_SECONDS = 3.0
"""... or for eight seconds, once Slurm has sent SIGTERM to it."""
_ALSO = "also"
UNCHECKED = Checked()


@dataclass(slots=True, eq=False)
class SeatLink:
    """A connection. Until `node` is known the other side is unverified."""

    socket: ssl.SSLSocket
    opened: float
    lines: Lines = field(default_factory=Lines)
    encrypted: bool = False
    """Its handshake is over."""
    outgoing: bytes = b""
    awaits_writing: bool = False
    node: str = ""
    generation: int = -1
    step: str = ""
    address: str = ""
    port: int = 0
    gpus: int = 0
    again: Mapping[str, Any] | None = None
    """What a seat reports that had another connection to a launcher of this job."""
    checked: Checked = UNCHECKED
    last_message_at: float = 0.0
    resting: bool = False
    open: bool = True


def open_server(ports: Sequence[int] = (0,)) -> socket.socket:
    """Raises OSError where none of the ports is free; 0 is any."""
    # It listens on all addresses: seats learn from Slurm by which one they reach this host.
    server = bind_a_port(ports)
    server.listen(4096)
    server.setblocking(False)
    return server


class Hub:
    """Used from one thread. Messages keep their order."""

    def __init__(self, key: JobKey, server: socket.socket) -> None:
        self._secret = key.secret
        self._context = launcher_context(key)
        self._selector = selectors.DefaultSelector()
        self._links: dict[SeatLink, None] = {}
        """The one whose last message is the oldest comes first. Without those that rest."""
        self._resting: set[SeatLink] = set()
        self._unverified: dict[SeatLink, str] = {}
        """Oldest first, each with the address it comes from."""
        self._accepts = True
        self._no_files_until = 0.0
        self._also: socket.socket | None = None
        self._beats: Turns[SeatLink] = Turns(LAUNCHER_BEAT_SECONDS, time.monotonic())
        """Verified seats. Beats to all in one pass would take 45 ms with 2,048 of them."""
        self._frequent_beats: Turns[SeatLink] = Turns(FREQUENT_BEAT_SECONDS, time.monotonic())
        self._asked_last = time.monotonic()
        self._server = server
        self._selector.register(self._server, selectors.EVENT_READ)
        self.port: int = self._server.getsockname()[1]

    def silent(self, seconds: float) -> Iterator[SeatLink]:
        """Verified seats that have been silent for longer, and do not rest. Takes no time where there are none."""
        now = time.monotonic()
        for link in self._links:
            if silence_of(link, now) <= seconds:
                return
            if link.node:
                yield link

    def watch(self, wakeup: socket.socket, take: Callable[[bytes], None] = lambda _: None) -> None:
        """`wait` returns for this socket too, and gives away what came: nothing once, at its end."""
        self._selector.register(wakeup, selectors.EVENT_READ, take)

    def also_wait_for(self, connection: socket.socket | None) -> None:
        """`wait` returns for this connection too, and its owner reads it. It replaces the one before."""
        if connection is self._also:
            return
        if self._also is not None:
            self._selector.unregister(self._also)
        self._also = connection
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, _ALSO)

    def wait(self, seconds: float) -> Iterator[tuple[SeatLink, Message]]:
        """Messages of seats but beats; `{"type": "hello"}` when one is verified, `{"type": "lost"}` when it has
        disconnected. Returns after this time, or once something has happened.
        """
        until = time.monotonic() + seconds
        happened = False
        while not happened:
            ready = self._selector.select(max(0.0, until - time.monotonic()))
            now = time.monotonic()
            if now - self._asked_last > seconds + 1.0:  # the launcher did not run: messages wait to be read
                for link in self._links:
                    link.last_message_at = now
            self._asked_last = now
            self._make_room(now)
            greeting = [key.data for key, _ in ready if isinstance(key.data, SeatLink) and not key.data.encrypted]
            self._make_handshakes(greeting)
            for key, events in ready:
                if isinstance(key.data, SeatLink):
                    for received in self._serve(key.data, events, now):
                        happened = True
                        yield received
                elif key.fileobj is self._server:
                    self._accept(now)
                else:
                    happened = True
                    if isinstance(key.fileobj, socket.socket) and key.data != _ALSO:
                        self._give(key.fileobj, key.data)
            self._beat(now)
            happened = happened or now >= until

    def _give(self, wakeup: socket.socket, take: Callable[[bytes], None]) -> None:
        try:
            came = wakeup.recv(4096)
        except BlockingIOError:
            return
        if not came:
            self._selector.unregister(wakeup)
        take(came)

    def _beat(self, now: float) -> None:
        for link in (*self._beats.due(now), *self._frequent_beats.due(now)):
            self.send_line(link, BEAT)

    def beat_often(self, link: SeatLink) -> None:
        """Slurm ends the step of this seat, which then waits for a silent launcher for a short time only."""
        if link.open:
            self._beats.remove(link)
            self._frequent_beats.add(link)

    def rest(self, link: SeatLink) -> None:
        """Another seat on its node beats: beats of this one are rare. Anything else that it sends ends that."""
        if link.open and not link.resting:
            link.resting = True
            self._resting.add(link)
            del self._links[link]
            self.send_line(link, encode("pace", resting=True))

    def wake(self, link: SeatLink, known: bool = False) -> None:
        """It beats as others do. `known`: it knows that from the message that follows."""
        if link.open and link.resting:
            link.resting = False
            self._resting.discard(link)
            link.last_message_at = time.monotonic()
            self._links[link] = None
            if not known:
                self.send_line(link, encode("pace", resting=False))

    def send(self, link: SeatLink, kind: str, **fields: object) -> None:
        """Never waits. A seat that has disconnected is reported as lost by `wait`."""
        self.send_line(link, encode(kind, **fields))

    def send_line(self, link: SeatLink, line: bytes) -> None:
        """Sends a message that is encoded already."""
        if link.open:
            link.outgoing += line
            self._flush(link)

    def close(self) -> None:
        for link in (*self._links, *self._resting):
            self._forget(link)
        self._selector.close()
        self._server.close()

    def _accept(self, now: float) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            if len(self._unverified) >= STRANGERS_MAX:
                self._accept_no_more()
                return
            try:
                connection, (address, *_) = self._server.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:  # no files are left
                self._no_files_until = now + NO_FILES_SECONDS
                self._accept_no_more()
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                secure = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except (OSError, ValueError):  # it is closed already
                connection.close()
                continue
            link = SeatLink(secure, now, Lines(STRANGER_BYTES_MAX), last_message_at=now)
            self._links[link] = None
            self._selector.register(secure, selectors.EVENT_READ, link)
            same = [one for one, whence in self._unverified.items() if whence == address]
            if len(same) >= STRANGERS_OF_AN_ADDRESS_MAX:
                self._forget(secrets.choice(same))  # by age a flood from a seat's own host would always hit the seat
            self._unverified[link] = address

    def _accept_no_more(self) -> None:
        self._accepts = False
        self._selector.unregister(self._server)

    def _make_room(self, now: float) -> None:
        """Only the newest strangers stay; the oldest come first. Accepts again where it can go on."""
        full = len(self._unverified) >= STRANGERS_MAX
        patience = min(OVERDUE_SECONDS if full else UNPROVEN_SECONDS, UNPROVEN_SECONDS)
        for link in list(
            takewhile(lambda one: now - one.opened > patience, self._unverified)
        ):  # the oldest comes first
            self._forget(link)
        if not self._accepts and len(self._unverified) < STRANGERS_MAX and now >= self._no_files_until:
            self._accepts = True
            self._selector.register(self._server, selectors.EVENT_READ)

    def _make_handshakes(self, links: list[SeatLink]) -> None:
        """The order is random, so that none can always come first."""
        random.shuffle(links)
        until = time.monotonic() + HANDSHAKE_SECONDS_A_PASS
        for link in links:
            if time.monotonic() >= until:
                return
            try:
                link.socket.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except (OSError, ValueError):  # no TLS, or it does not read what it is sent
                self._forget(link)
            else:
                link.encrypted = True

    def _serve(self, link: SeatLink, events: int, now: float) -> Iterable[tuple[SeatLink, Message]]:
        if link.open and events & selectors.EVENT_WRITE:
            self._flush(link)
        if not (link.open and link.encrypted and events & selectors.EVENT_READ):
            return ()
        try:
            piece = link.socket.recv(65536)  # more than a record of TLS: nothing is left in its buffer
        except ssl.SSLWantReadError:
            return ()
        except OSError:
            piece = b""
        if piece == BEAT and link.node and link.lines.at_the_end:  # nearly all that comes
            self._heard(link, now)
            return ()
        return self._take(link, piece, now)

    def _take(self, link: SeatLink, piece: bytes, now: float) -> Iterator[tuple[SeatLink, Message]]:
        try:
            messages = link.lines.feed(piece)
        except ProtocolError:
            piece, messages = b"", []
        if any(message["type"] != "beat" for message in messages):
            self.wake(link)
        self._heard(link, now)
        for message in messages:
            if link.node:
                if message["type"] != "beat":
                    yield link, message
                continue
            try:
                self._introduce(link, message)
            except ProtocolError:
                piece = b""
                break
            yield link, {"type": "hello"}
        if not piece:
            known = bool(link.node)
            self._forget(link)
            if known:
                yield link, {"type": "lost"}

    def _heard(self, link: SeatLink, now: float) -> None:
        link.last_message_at = now
        if not link.resting:
            self._links[link] = self._links.pop(link)

    def _introduce(self, link: SeatLink, message: Message) -> None:
        """Raises ProtocolError where it is no seat of this job."""
        if message["type"] != "hello" or not is_secret(message.get("secret"), self._secret):
            raise ProtocolError("it does not know the secret")
        link.generation, link.step = number(message, "generation"), text(message, "step")
        link.address, link.port, link.gpus = text(message, "address"), number(message, "port"), number(message, "gpus")
        link.again = message.get("again")
        if not isinstance(link.again, dict | None):
            raise ProtocolError(f"hello: again is {link.again!r}")
        link.checked = _checked(message.get("checked"))
        link.node = text(message, "node")
        link.lines.bytes_max = LINE_BYTES_MAX
        self._unverified.pop(link, None)
        self._beats.add(link)
        self.send_line(link, BEAT)

    def _flush(self, link: SeatLink) -> None:
        try:
            while link.outgoing:  # a record at a time
                link.outgoing = link.outgoing[link.socket.send(link.outgoing) :]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError:
            return  # `_serve` notices it
        if bool(link.outgoing) is not link.awaits_writing:
            link.awaits_writing = bool(link.outgoing)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.outgoing else 0)
            self._selector.modify(link.socket, events, link)

    def _forget(self, link: SeatLink) -> None:
        if link.open:
            link.open = False
            self._selector.unregister(link.socket)
            link.socket.close()
            self._links.pop(link, None)
            self._resting.discard(link)
            self._unverified.pop(link, None)
            self._beats.remove(link)
            self._frequent_beats.remove(link)


def _checked(value: object) -> Checked:
    """Raises ProtocolError."""
    if value is None:
        return UNCHECKED
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)):
        raise ProtocolError(f"hello: checked is {value!r}")
    return Checked(*value)


def silence_of(link: SeatLink, now: float) -> float:
    """Time since its last message, less the usual time between two beats. 0: it rests."""
    return 0.0 if link.resting else max(0.0, now - link.last_message_at - BEAT_SECONDS)
