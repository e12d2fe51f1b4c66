"""The keeper's two sockets, a thread for each connection, and the limits of both."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy_agent.log import fields, log
from understudy_agent.own_files import make_directory
from understudy_agent.process import peer
from understudy_agent.shares import NoRoomError
from understudy_agent.shares import Pace as Admission
from understudy_keeper.copies import ID_MAX, Copier, Pace, give
from understudy_keeper.local import Conversation, LocalKeeper
from understudy_keeper.places import Greetings, Places, cut, cut_after
from understudy_keeper.proof import GREETING_SECONDS, Identity, accept
from understudy_keeper.store import Store
from understudy_wire.addresses import bound, with_port
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import Frames, number

CONNECTIONS_MAX = 1024
CONNECTIONS_OF_USER_MAX = 768
"""Three for each of 256 ranks."""
MESSAGE_OF_RANK_BYTES_MAX = 65_536
KEEPERS_MAX = 256
"""Connections of other nodes' keepers."""
CONNECTIONS_OF_FETCHES_MAX = 8
"""Connections that fetch the parts of lost ranks: one core decrypts 1 GB/s."""
GREETINGS_MAX = 128
GREETINGS_OF_ADDRESS_MAX = 32
"""Greetings of an address at the same time: each rank of a node fetches its part, when the node has just taken another
one's place.
"""
GREETINGS_AT_ONCE = 320
GREETINGS_EACH_SECOND = 64.0
"""Greetings from one address. More are closed before anything is made for them."""
CONNECTS_AT_ONCE = CONNECTIONS_OF_USER_MAX
CONNECTS_EACH_SECOND = 64.0
"""Connections of one user of this node."""
BACKLOG = 4096
"""Connections that wait in the kernel. Where they are too many, the kernel refuses those of every node and user."""
LOCAL_SECONDS = 60.0
"""Time for a rank to read the next piece of its part."""
EXPIRE_EVERY_SECONDS = 30.0
STRANGERS = -1
"""Stands for a user id."""


@dataclass(frozen=True, slots=True)
class Settings:
    socket: Path
    listen: str
    port: int
    address: str
    bytes_max: int
    bytes_of_user_max: int
    bytes_per_second: float
    keep_seconds: float


class Lines:
    """Lines of the log that a user, or all strangers together, can cause: 32 at once, and one in five seconds."""

    def __init__(self) -> None:
        self._pace = Admission(burst=32, each_second=0.2)
        self._lock = threading.Lock()

    def admits(self, who: int) -> bool:
        with self._lock:
            return self._pace.admits(who, time.monotonic())


class Keeper:
    def __init__(self, settings: Settings, identity: Identity) -> None:
        self.store = Store(settings.bytes_max, settings.bytes_of_user_max)
        self._settings, self._identity = settings, identity
        connections = min(CONNECTIONS_OF_FETCHES_MAX, (os.cpu_count() or 1) // 2)
        self._copier = Copier(self.store, identity, Pace(settings.bytes_per_second), connections=connections)
        self._users: Places[socket.socket] = Places(CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, cut)
        self._keepers: Places[socket.socket] = Places(KEEPERS_MAX, KEEPERS_MAX, cut)
        self._connects = Admission(CONNECTS_AT_ONCE, CONNECTS_EACH_SECOND)
        pace = Admission(GREETINGS_AT_ONCE, GREETINGS_EACH_SECOND)
        self._greetings = Greetings(GREETINGS_MAX, GREETINGS_OF_ADDRESS_MAX, pace)
        self._lines = Lines()
        self._stopping = threading.Event()
        self._listeners: list[socket.socket] = []
        self._local: LocalKeeper | None = None

    def start(self) -> None:
        """Raises OSError."""
        settings = self._settings
        network = bound(settings.listen, settings.port)
        self._listeners.append(network)
        network.listen(BACKLOG)
        self._local = LocalKeeper(self.store, self._copier, with_port(settings.address, network.getsockname()[1]))
        make_directory(settings.socket.parent)
        settings.socket.unlink(missing_ok=True)
        users = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(users)
        users.bind(os.fspath(settings.socket))
        settings.socket.chmod(0o666)
        users.listen(BACKLOG)
        _thread(self._accept, users, self._admits_user, self._serve_user)
        _thread(self._accept, network, self._admits_keeper, self._serve_keeper)
        _thread(self._expire)

    @property
    def address(self) -> str:
        assert self._local is not None
        return self._local.address

    def stop(self) -> None:
        self._stopping.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._settings.socket.unlink(missing_ok=True)

    def _accept(
        self,
        listener: socket.socket,
        admits: Callable[[socket.socket], bool],
        serve: Callable[[socket.socket], None],
    ) -> None:
        """A flood costs little: what is too much of one user or address is closed at once, before it has a thread."""
        while not self._stopping.is_set():
            try:
                link, _ = listener.accept()
            except OSError:
                self._stopping.wait(0.1)  # no descriptors left, or stopped
                continue
            try:
                if admits(link):
                    _thread(serve, link)
                else:
                    link.close()
            except RuntimeError:  # no threads left
                link.close()

    def _admits_user(self, link: socket.socket) -> bool:
        return self._connects.admits(peer(link)[1], time.monotonic())

    def _admits_keeper(self, link: socket.socket) -> bool:
        return self._greetings.admits(_name(link))

    def _serve_user(self, link: socket.socket) -> None:
        frames = Frames(link, MESSAGE_OF_RANK_BYTES_MAX)
        with contextlib.closing(frames):
            pid, user_id = peer(link)
            try:
                self._users.enter(link, user_id)
                link.settimeout(None)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(LOCAL_SECONDS), 0))
                assert self._local is not None
                Conversation(self._local, frames, user_id).run()
            except ProtocolError as error:
                if self._lines.admits(user_id):
                    log.warning("rank_refused", extra=fields(pid=pid, error=error))
                with contextlib.suppress(OSError):
                    frames.send({"error": str(error)[:500]})
            except (OSError, NoRoomError):
                pass  # it is gone, or its user has its share
            finally:
                self._users.leave(link)

    def _serve_keeper(self, link: socket.socket) -> None:
        address = _name(link)
        frames = self._greet(link, address)
        if frames is None:
            return
        self._greetings.note_proven(address)
        with contextlib.closing(frames):
            try:
                # it is root's and names its user: he has a share, however many nodes he has
                first = frames.receive()
                self._keepers.enter(frames.link, number(first, "user_id", ID_MAX), number(first, "job_id", ID_MAX))
                give(frames, self.store, first)
            except ProtocolError as error:
                if self._lines.admits(STRANGERS):
                    log.warning("keeper_refused", extra=fields(address=address, error=error))
            except (OSError, ClosedError, NoRoomError):
                pass  # it is gone, or its user has its share
            finally:
                self._keepers.leave(frames.link)

    def _greet(self, link: socket.socket, address: str) -> Frames | None:
        """One that does not prove itself in time is cut off."""
        with cut_after(GREETING_SECONDS, link) as same, self._greetings.place(same, address):
            try:
                link.settimeout(GREETING_SECONDS)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return accept(link, self._identity)
            except (OSError, ssl.SSLError, ProtocolError, ClosedError) as error:
                if self._lines.admits(STRANGERS):
                    log.warning("keeper_refused", extra=fields(address=address, error=error))
                link.close()
                return None

    def _expire(self) -> None:
        while not self._stopping.wait(EXPIRE_EVERY_SECONDS):
            assert self._local is not None
            in_use = set(self._local.in_use.copy().values())
            for _, job_id in self.store.expire(self._settings.keep_seconds, in_use):
                log.info("job_freed", extra=fields(job=job_id, reason="nothing has used it"))


def _thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _name(link: socket.socket) -> str:
    try:
        return str(link.getpeername()[0])
    except OSError:
        return ""
