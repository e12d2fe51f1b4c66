"""Places for connections, in shares, from any thread: a user, a job or an address that comes late has one too."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from understudy_agent.shares import Arrivals, Pace, Shares
from understudy_wire.addresses import canonical

PREFIX_OF_STRANGERS_IPV6 = 64
KNOWN_MAX = 4096

MemberT = TypeVar("MemberT", bound=Hashable)


def cut(link: socket.socket) -> None:
    """Its own thread sees the end. Also of a connection with TLS, whose state belongs to that thread."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_RDWR)


@contextlib.contextmanager
def cut_after(seconds: float, link: socket.socket) -> Iterator[socket.socket]:
    """Cuts the connection where the block takes longer, however much comes meanwhile. Yields another name of the
    connection, which stays the same when TLS takes the first one over.
    """
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        late = threading.Timer(seconds, cut, (same,))
        late.daemon = True
        late.start()
        try:
            yield same
        finally:
            late.cancel()
            late.join()


class Room:
    """Places for what cannot be ended at once: some in all, and some for each group."""

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


class Places(Generic[MemberT]):
    """Each user, and each job of a user, has a share."""

    def __init__(self, in_all: int, of_user: int, displace: Callable[[MemberT], object]) -> None:
        """`displace`: ends one that has to make room."""
        self._shares: Shares[MemberT] = Shares(in_all, of_user)
        self._displace, self._lock = displace, threading.Lock()

    def enter(self, member: MemberT, user_id: int, job_id: int = 0) -> None:
        """Raises NoRoomError."""
        with self._lock:
            displaced = self._shares.enter(member, user_id, job_id)
        if displaced is not None:
            self._displace(displaced)

    def leave(self, member: MemberT) -> None:
        with self._lock:
            self._shares.leave(member)


class Greetings:
    """Connections from other nodes that have not proven yet who they are. None is refused: the oldest one of its own
    address, or of the address that has most, makes room. Addresses from which a keeper has proven itself have places
    of their own: each for itself, where strangers of one network of IPv6 count as one.
    """

    def __init__(self, in_all: int, of_address: int, pace: Pace) -> None:
        self._of_strangers: Arrivals[socket.socket] = Arrivals(in_all, of_address)
        self._of_known: Arrivals[socket.socket] = Arrivals(in_all, of_address)
        self._known: dict[str, None] = {}
        self._pace, self._lock = pace, threading.Lock()

    def admits(self, address: str) -> bool:
        """True if one more may come from there now."""
        with self._lock:
            return self._pace.admits(self._group(address), time.monotonic())

    @contextlib.contextmanager
    def place(self, link: socket.socket, address: str) -> Iterator[None]:
        with self._lock:
            group = self._group(address)
            room = self._of_known if group in self._known else self._of_strangers
            displaced = room.enter(link, group)
        if displaced is not None:
            cut(displaced)
        try:
            yield
        finally:
            with self._lock:
                room.leave(link)

    def note_proven(self, address: str) -> None:
        """A keeper is there."""
        own = group_of(address, 128)
        with self._lock:
            self._known.pop(own, None)
            self._known[own] = None
            while len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]  # the one that came longest ago

    def _group(self, address: str) -> str:
        own = group_of(address, 128)
        return own if own in self._known else group_of(address)


def group_of(address: str, prefix: int = PREFIX_OF_STRANGERS_IPV6) -> str:
    """Addresses of which one host can have many are one: those of loopback, and of a network of IPv6."""
    try:
        found = ipaddress.ip_address(canonical(address.partition("%")[0]))
    except ValueError:
        return address
    if found.is_loopback:
        return "loopback"
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, prefix), strict=False))
