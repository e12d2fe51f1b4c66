"""The keeper's two sockets, a thread for each connection, and the limits of both."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from understudy_agent.keeper.copies import Copier, Pace, give
from understudy_agent.keeper.frames import ClosedError, Frames, ProtocolError
from understudy_agent.keeper.local import Conversation, LocalKeeper
from understudy_agent.keeper.proof import Identity, accept
from understudy_agent.keeper.store import Store
from understudy_agent.log import fields, log
from understudy_agent.own_files import make_directory
from understudy_agent.process import peer
from understudy_agent.shares import Pace as LinePace

CONNECTIONS_MAX = 1024
CONNECTIONS_OF_USER_MAX = 768
"""Three for each of 256 ranks."""
MESSAGE_OF_RANK_BYTES_MAX = 65_536
KEEPERS_MAX = 256
CONNECTIONS_OF_FETCHES_MAX = 8
"""To fetch the parts of lost ranks: one core decrypts 1 GB/s."""
GREETINGS_OF_ADDRESS_MAX = 32
"""Each rank of a node fetches its part, when the node has just taken another one's place."""
GREETING_SECONDS = 15.0
LOCAL_SECONDS = 60.0
"""For a rank to read the next piece of its part."""
EXPIRE_EVERY_SECONDS = 30.0
STRANGERS = -1
"""In place of a user id."""


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
    """Of the log, that a user, or all strangers together, can cause: 32 at once, and one in five seconds."""

    def __init__(self) -> None:
        self._pace = LinePace(burst=32, each_second=0.2)
        self._lock = threading.Lock()

    def admits(self, who: int) -> bool:
        with self._lock:
            return self._pace.admits(who, time.monotonic())


class Room:
    """Places for connections: some in all, and some for each group of them."""

    def __init__(self, in_all: int, of_each: int) -> None:
        self._in_all, self._of_each = in_all, of_each
        self._groups: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def enter(self, group: Hashable) -> bool:
        with self._lock:
            if self._groups.total() >= self._in_all or self._groups[group] >= self._of_each:
                return False
            self._groups[group] += 1
            return True

    def leave(self, group: Hashable) -> None:
        with self._lock:
            self._groups[group] -= 1
            if not self._groups[group]:
                del self._groups[group]


class Keeper:
    def __init__(self, settings: Settings, identity: Identity) -> None:
        self.store = Store(settings.bytes_max, settings.bytes_of_user_max)
        self._settings, self._identity = settings, identity
        connections = min(CONNECTIONS_OF_FETCHES_MAX, (os.cpu_count() or 1) // 2)
        self._copier = Copier(self.store, identity, Pace(settings.bytes_per_second), connections=connections)
        self._users, self._keepers = Room(CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX), Room(KEEPERS_MAX, KEEPERS_MAX)
        self._greetings = Room(KEEPERS_MAX, GREETINGS_OF_ADDRESS_MAX)
        self._lines = Lines()
        self._stopping = threading.Event()
        self._listeners: list[socket.socket] = []
        self._local: LocalKeeper | None = None

    def start(self) -> None:
        """Raises OSError."""
        settings = self._settings
        family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
        network = socket.create_server((settings.listen, settings.port), family=family, backlog=128)
        self._listeners.append(network)
        host, port = settings.address, network.getsockname()[1]
        self._local = LocalKeeper(self.store, self._copier, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        make_directory(settings.socket.parent)
        settings.socket.unlink(missing_ok=True)
        users = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(users)
        users.bind(os.fspath(settings.socket))
        settings.socket.chmod(0o666)
        users.listen(128)
        _thread(self._accept, users, self._serve_user)
        _thread(self._accept, network, self._serve_keeper)
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

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while not self._stopping.is_set():
            try:
                link, _ = listener.accept()
            except OSError:
                self._stopping.wait(0.1)  # no descriptors left, or stopped
                continue
            try:
                _thread(serve, link)
            except RuntimeError:  # no threads left
                link.close()

    def _serve_user(self, link: socket.socket) -> None:
        frames = Frames(link, MESSAGE_OF_RANK_BYTES_MAX)
        with contextlib.closing(frames):
            pid, user_id = peer(link)
            if not self._users.enter(user_id):
                return
            try:
                link.settimeout(None)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(LOCAL_SECONDS))
                assert self._local is not None
                Conversation(self._local, frames, user_id).run()
            except ProtocolError as error:
                if self._lines.admits(user_id):
                    log.warning("rank_refused", extra=fields(pid=pid, error=error))
                with contextlib.suppress(OSError):
                    frames.send({"error": str(error)[:500]})
            except OSError:
                pass  # it is gone
            finally:
                self._users.leave(user_id)

    def _serve_keeper(self, link: socket.socket) -> None:
        host = _name(link)
        if not self._greetings.enter(host):
            link.close()
            return
        try:
            frames = self._greet(link)
        finally:
            self._greetings.leave(host)
        if frames is None:
            return
        with contextlib.closing(frames):
            if not self._keepers.enter(host):
                return
            try:
                give(frames, self.store)
            except ProtocolError as error:
                if self._lines.admits(STRANGERS):
                    log.warning("keeper_refused", extra=fields(address=host, error=error))
            except OSError:
                pass  # it is gone
            finally:
                self._keepers.leave(host)

    def _greet(self, link: socket.socket) -> Frames | None:
        """One that does not prove itself in time is cut off."""
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            late = threading.Timer(GREETING_SECONDS, _cut, (same,))
            late.daemon = True
            late.start()
            try:
                link.settimeout(GREETING_SECONDS)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return accept(link, self._identity)
            except (OSError, ssl.SSLError, ProtocolError, ClosedError) as error:
                if self._lines.admits(STRANGERS):
                    log.warning("keeper_refused", extra=fields(address=_name(same), error=error))
                link.close()
                return None
            finally:
                late.cancel()
                late.join()

    def _expire(self) -> None:
        while not self._stopping.wait(EXPIRE_EVERY_SECONDS):
            assert self._local is not None
            in_use = set(self._local.in_use.copy().values())
            for _, job_id in self.store.expire(self._settings.keep_seconds, in_use):
                log.info("job_freed", extra=fields(job=job_id, reason="nothing has used it"))


def _thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _cut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def _name(link: socket.socket) -> str:
    try:
        return str(link.getpeername()[0])
    except OSError:
        return ""


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), 0)
