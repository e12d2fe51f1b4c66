"""How fast a node and some peers exchange data: in pairs, both ways, and around a ring.

All ranks run the same schedule; rank 0, the node under test, says when each pair has its turn. The transport is plain
TCP, or torch.distributed (gloo, or NCCL where every node has it), by the same schedule.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Any, Protocol

from understudy_wire.addresses import EVERY, bound, canonical

CHUNK_BYTES = 4 * 2**20
COUNT_MAX = 100_000
JOIN_SECONDS = 45.0
"""How long peers may take to join: their jobs have to start."""

SILENT_SECONDS = 60.0
LINE_BYTES_MAX = 64 * 1024
BACKLOG = 64
_NUMBER = struct.Struct("!d")

Pair = tuple[int, int]
Clock = Callable[[], float]


class NetworkError(Exception):
    """The test could not be carried out. The message says why."""


class Mesh(Protocol):
    """What one rank can do with the others."""

    rank: int
    names: Sequence[str]

    def send(self, peer: int) -> None:
        """One chunk."""

    def receive(self, peer: int) -> None: ...

    def tell(self, peer: int, number: float) -> None: ...

    def hear(self, peer: int) -> float: ...

    def ring(self, count: int) -> None:
        """Sends that many chunks around all ranks: an all-reduce, where the transport has one."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in GB/s. `pairs`: from the first rank to the second."""

    names: tuple[str, ...]
    pairs: Mapping[Pair, float]
    ring: float


# -- the schedule ------------------------------------------------------------


def measure(mesh: Mesh, seconds: float, clock: Clock = time.perf_counter) -> Rates | None:
    """Rank 0 gets what was measured; each pair takes twice `seconds`, the ring once."""
    found: dict[Pair, float] = {}
    ranks = range(len(mesh.names))
    for one, other in combinations(ranks, 2):
        for sender, receiver in ((one, other), (other, one)):
            if mesh.rank == 0 and sender != 0:
                mesh.tell(sender, 1.0)
            if mesh.rank == sender:
                if sender != 0:
                    mesh.hear(0)
                rate = _push(mesh, receiver, seconds, clock)
                if sender == 0:
                    found[sender, receiver] = rate
                else:
                    mesh.tell(0, rate)
            elif mesh.rank == receiver:
                _pull(mesh, sender)
            if mesh.rank == 0 and sender != 0:
                found[sender, receiver] = mesh.hear(sender)
    ring = _ring(mesh, found, seconds, clock)
    return Rates(tuple(mesh.names), found, ring) if mesh.rank == 0 else None


def _push(mesh: Mesh, peer: int, seconds: float, clock: Clock) -> float:
    """First one chunk, which shows how many fit into the time."""
    took = _chunks(mesh, peer, 1, clock)
    count = max(1, min(COUNT_MAX, int(seconds / max(took, 1e-6))))
    return count * CHUNK_BYTES / _chunks(mesh, peer, count, clock) / 1e9


def _chunks(mesh: Mesh, peer: int, count: int, clock: Clock) -> float:
    mesh.tell(peer, count)
    begun = clock()
    for _ in range(count):
        mesh.send(peer)
    mesh.hear(peer)  # all have arrived
    return clock() - begun


def _pull(mesh: Mesh, peer: int) -> None:
    for _ in range(2):
        for _ in range(int(mesh.hear(peer))):
            mesh.receive(peer)
        mesh.tell(peer, 0.0)


def _ring(mesh: Mesh, found: Mapping[Pair, float], seconds: float, clock: Clock) -> float:
    others = range(1, len(mesh.names))
    if mesh.rank != 0:
        mesh.ring(int(mesh.hear(0)))
        mesh.tell(0, 0.0)
        return 0.0
    count = max(1, min(COUNT_MAX, int(seconds * min(found.values()) * 1e9 / CHUNK_BYTES / 2)))
    for peer in others:
        mesh.tell(peer, count)
    begun = clock()
    mesh.ring(count)
    for peer in others:
        mesh.hear(peer)
    return count * CHUNK_BYTES / (clock() - begun) / 1e9


# -- what follows from it ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judges the node under test. `slow`: nodes that are slow to all others. `value` None: it cannot be judged."""

    value: float | None
    mark: float
    slow: tuple[str, ...]
    why: str


def judge(rates: Rates, ratio: float, usual: float | None) -> Verdict:
    """`usual`: the median of the fleet, in GB/s; None: too few nodes were measured.

    A pair says that one of its ends is slow, and a third peer which: a node is slow where each of its pairs is, and
    those without it are not.
    """
    pairs = {
        (one, other): min(rates.pairs[one, other], rates.pairs[other, one]) for one, other in rates.pairs if one < other
    }
    slow = {rank for rank in range(len(rates.names)) if _is_slow(rank, pairs, ratio)}
    good = {pair: rate for pair, rate in pairs.items() if not slow - {0} & set(pair)} or pairs
    value = median(rate for pair, rate in good.items() if 0 in pair)
    without = [rate for pair, rate in good.items() if 0 not in pair]
    reference = max([*([median(without)] if without else []), *([usual] if usual else [])], default=0.0)
    mark = ratio * reference
    named = tuple(rates.names[rank] for rank in sorted(slow))
    others = [name for name in named if name != rates.names[0]]
    if 0 in slow:
        return Verdict(value, mark, named, f"{value / reference:.2f} of the median of the others")
    if usual is not None and value < ratio * usual:
        unsure = not without or median(without) < ratio * usual
        share = f"{value / usual:.2f} of the fleet's median"
        if unsure:
            return Verdict(
                None, ratio * usual, named, f"{share}, and its peers too: no third peer shows which end it is"
            )
        return Verdict(value, ratio * usual, (rates.names[0], *named), share)
    return Verdict(value, mark, named, f"{', '.join(others)} slow towards all others" if others else "")


def _is_slow(rank: int, pairs: Mapping[Pair, float], ratio: float) -> bool:
    own = [rate for pair, rate in pairs.items() if rank in pair]
    others = [rate for pair, rate in pairs.items() if rank not in pair]
    return bool(others) and max(own) < ratio * median(others)


# -- joining ----------------------------------------------------------------------


@dataclass
class SocketMesh:
    """A mesh over TCP. `pace` is called with the bytes that were just sent: a test makes a peer slow by it."""

    rank: int
    names: Sequence[str]
    links: Mapping[int, socket.socket]
    transport: str = "tcp"
    meeting: tuple[str, int] = ("", 0)  # where a process group of torch meets
    pace: Callable[[int], None] | None = None
    _out: bytes = field(default=bytes(CHUNK_BYTES), repr=False)
    _in: bytearray = field(default_factory=lambda: bytearray(CHUNK_BYTES), repr=False)

    def send(self, peer: int) -> None:
        self.links[peer].sendall(self._out)
        if self.pace is not None:
            self.pace(CHUNK_BYTES)

    def receive(self, peer: int) -> None:
        _fill(self.links[peer], memoryview(self._in))

    def tell(self, peer: int, number: float) -> None:
        self.links[peer].sendall(_NUMBER.pack(number))

    def hear(self, peer: int) -> float:
        raw = bytearray(_NUMBER.size)
        _fill(self.links[peer], memoryview(raw))
        return float(_NUMBER.unpack(raw)[0])

    def ring(self, count: int) -> None:
        world = len(self.names)
        following, before = (self.rank + 1) % world, (self.rank - 1) % world

        def send_all() -> None:
            for _ in range(count):
                self.send(following)

        sender = threading.Thread(target=send_all, daemon=True)
        sender.start()
        for _ in range(count):
            _fill(self.links[before], memoryview(self._in))
        sender.join()

    def wait_for_turns(self, seconds: float) -> None:
        """A rank hears nothing while the others have their turns."""
        turns = len(self.names) * (len(self.names) - 1)
        for link in self.links.values():
            link.settimeout(SILENT_SECONDS + 4 * turns * seconds)

    def close(self) -> None:
        for link in self.links.values():
            link.close()


class Host:
    """Rank 0: waits for the peers, and says who takes part."""

    def __init__(self, name: str, token: str, bind: str = EVERY) -> None:
        self._name, self._token = name, token
        self._server = bound(bind, 0)
        self._server.listen(BACKLOG)
        self.port: int = self._server.getsockname()[1]

    def gather(self, peers: int, seconds: float = JOIN_SECONDS, transport: str = "auto") -> SocketMesh:
        """Those that have joined in time. Raises NetworkError where there is none."""
        joined: list[tuple[socket.socket, dict[str, Any], str]] = []
        deadline = time.monotonic() + seconds
        while len(joined) < peers and time.monotonic() < deadline:
            self._server.settimeout(max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(OSError, ValueError, KeyError):
                link, address = self._server.accept()
                hello = _admitted(link, self._token)
                if hello is not None:
                    joined.append((link, hello, canonical(address[0])))
        self._server.close()
        if not joined:
            raise NetworkError("no peer was free in time")
        with bound(EVERY, 0) as probe:
            meeting = int(probe.getsockname()[1])
        names = [self._name, *(hello["name"] for _, hello, _ in joined)]
        at = [["", 0], *([address, int(hello["port"])] for _, hello, address in joined)]
        if transport == "auto":
            transport = "nccl" if has_nccl() and all(hello["nccl"] for _, hello, _ in joined) else "tcp"
        own = canonical(joined[0][0].getsockname()[0])
        for rank, (link, _, _) in enumerate(joined, 1):
            _say(link, {"rank": rank, "names": names, "at": at, "transport": transport, "meeting": [own, meeting]})
        links = {rank: link for rank, (link, _, _) in enumerate(joined, 1)}
        for rank, link in links.items():
            if _heard(link).get("ready") != rank:
                raise NetworkError(f"{names[rank]} could not reach the others")
        return SocketMesh(0, names, links, transport, (own, meeting))


def join(name: str, address: tuple[str, int], token: str, seconds: float = JOIN_SECONDS) -> SocketMesh:
    """A peer. Raises OSError and NetworkError."""
    server = bound(EVERY, 0)
    server.listen(BACKLOG)
    host = socket.create_connection(address, timeout=seconds)
    host.settimeout(seconds + SILENT_SECONDS)
    _say(host, {"token": token, "name": name, "port": server.getsockname()[1], "nccl": has_nccl()})
    roster = _heard(host)
    rank, names = int(roster["rank"]), list(roster["names"])
    links = {0: host}
    for other in range(1, rank):
        there, port = roster["at"][other]
        links[other] = socket.create_connection((there, int(port)), timeout=SILENT_SECONDS)
        _say(links[other], {"token": token, "rank": rank})
    server.settimeout(SILENT_SECONDS)
    while len(links) < len(names) - 1:
        link, _ = server.accept()
        hello = _admitted(link, token)
        if hello is not None:
            links[int(hello["rank"])] = link
    server.close()
    _say(host, {"ready": rank})
    return SocketMesh(rank, names, links, str(roster["transport"]), tuple(roster["meeting"]))


def has_nccl() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None and torch.cuda.is_available() and torch.distributed.is_nccl_available()


def _admitted(link: socket.socket, token: str) -> dict[str, Any] | None:
    """What a program without the token sends costs it its connection."""
    link.settimeout(SILENT_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        hello = _heard(link)
        if hmac.compare_digest(str(hello.get("token", "")).encode(), token.encode()):
            return hello
    except (OSError, ValueError, NetworkError):
        pass
    link.close()
    return None


def _say(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def _heard(link: socket.socket) -> dict[str, Any]:
    """A line. Read byte by byte: what follows it belongs to the schedule."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = link.recv(1)
        if not byte or len(line) > LINE_BYTES_MAX:
            raise NetworkError("a peer has gone")
        line += byte
    message = json.loads(line)
    if not isinstance(message, dict):
        raise NetworkError("a peer sends no message")
    return message


def _fill(link: socket.socket, view: memoryview) -> None:
    while view:
        got = link.recv_into(view)
        if got == 0:
            raise NetworkError("a peer has gone")
        view = view[got:]
