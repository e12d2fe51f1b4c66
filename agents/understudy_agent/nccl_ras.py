"""Asks the RAS service of NCCL that ranks of a gang on this node run, when the gang stands still.

Each process with a communicator listens at the same address (`NCCL_RAS_ADDR`, else port 28028 of localhost), and the
kernel chooses which of them answers. So it is not the address that counts, but whose socket it is: nothing is asked
unless a process of this gang listens there, and nothing counts unless the socket at the other end is of one. The
kernel says which, by the number of the socket in /proc/net/tcp and among the open files of the rank's process.

The protocol is that of NCCL's own client (src/ras/client.cc). All that it sends is bounded in time and bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from understudy_agent.log import fields, log
from understudy_agent.nccl_answer import NotUnderstoodError, parsed
from understudy_agent.rank_messages import Hello
from understudy_wire.addresses import is_every
from understudy_wire.ranks import HangQuestion, NcclSeen

PORT = 28028
GATHER_SECONDS = 3
"""Time in which the service waits for other processes; it gives up 5 s later."""
ANSWER_SECONDS = 10.0
LINE_SECONDS = 1.0
"""A process that is stopped accepts connections as well: the kernel does."""
TRIES_MAX = 6
"""Connections until one of this gang's ranks answers: others of the same user may listen at the address."""
BETWEEN_SECONDS = 4.0
AGAIN_SECONDS = 20.0
FORGET_SECONDS = 60.0
"""The kernel may not show the environment of a process that hangs, and a thread that waits for it cannot be ended."""
HANGING_MAX = 4
"""Threads that wait so, each for another gang, until no further gang is asked."""
JSON_BYTES_MAX = 8 * 2**20
"""About 13,000 ranks of a communicator. What is larger is asked for as text."""
TEXT_BYTES_MAX = 2**20
LINE_BYTES_MAX = 256
ENVIRON_BYTES_MAX = 2**18
SOCKETS_BYTES_MAX = 2**22
OPEN_FILES_MAX = 8192


_Attempt = tuple[int, int, int, int]
"""Job, its restart count, its launch, and its user."""


class NotAskedError(Exception):
    """Why there is no answer."""


@dataclass(frozen=True, slots=True)
class _Socket:
    """One line of /proc/net/tcp."""

    local: tuple[str, int]
    remote: tuple[str, int]
    listens: bool
    number: str


class NcclWatch:
    """Asks for one gang at a time. Belongs to one event loop."""

    def __init__(
        self,
        ranks_of: Callable[[HangQuestion], Mapping[int, Hello]],
        note: Callable[[Hello, int, NcclSeen], None],
        proc: Path = Path("/proc"),
        between_seconds: float = BETWEEN_SECONDS,
    ) -> None:
        """`ranks_of`: those of the gang that are connected. `note` gets the rank, its user and what was seen."""
        self._ranks_of, self._note = ranks_of, note
        self._proc, self._between_seconds = proc, between_seconds
        self._asking: asyncio.Task[None] | None = None
        self._asked: dict[_Attempt, float] = {}
        """When it was asked."""
        self._threads: dict[_Attempt, threading.Thread] = {}

    def take(self, question: HangQuestion) -> None:
        """It comes again with each answer of the control plane while the gang stands still."""
        now = time.monotonic()
        key = (question.job_id, question.restart_count, question.launch, question.user_id)
        if self._asking is not None or now - self._asked.get(key, float("-inf")) < AGAIN_SECONDS:
            return
        self._threads = {one: thread for one, thread in self._threads.items() if thread.is_alive()}
        if key in self._threads or len(self._threads) >= HANGING_MAX:
            return
        ranks = self._ranks_of(question) if question.nccl_ranks else {}
        asked = next((rank for rank in question.nccl_ranks if rank in ranks), None)
        if asked is None:
            return
        self._asked = {one: at for one, at in self._asked.items() if now - at < AGAIN_SECONDS} | {key: now}
        self._asking = asyncio.get_running_loop().create_task(self._ask(question, key, ranks[asked], ranks))

    async def _ask(self, question: HangQuestion, key: _Attempt, hello: Hello, ranks: Mapping[int, Hello]) -> None:
        pids = {rank: one.pid for rank, one in ranks.items()}
        try:
            first = await self._answer(key, pids, hello.world_size)
            await asyncio.sleep(self._between_seconds)
            second = await self._answer(key, pids, hello.world_size)
            self._note(hello, question.user_id, msgspec.structs.replace(second, still=first == second))
        except NotAskedError as error:
            log.info("nccl_not_asked", extra=fields(job=question.job_id, reason=error))
        finally:
            self._asking = None

    async def _answer(self, key: _Attempt, pids: Mapping[int, int], world_size: int) -> NcclSeen:
        """Raises NotAskedError. Its thread is none of the executor's, for which the end of the loop waits."""
        answer: Future[NcclSeen] = Future()
        arguments = (answer, pids, world_size, self._proc)
        thread = threading.Thread(target=_ask_in_thread, args=arguments, name="understudy-nccl", daemon=True)
        self._threads[key] = thread
        thread.start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), FORGET_SECONDS)
        except TimeoutError as error:
            raise NotAskedError(f"its processes were not read within {FORGET_SECONDS:g} s") from error

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking


def _ask_in_thread(answer: Future[NcclSeen], pids: Mapping[int, int], world_size: int, proc: Path) -> None:
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(ask(pids, world_size, proc))
        except NotAskedError as error:
            answer.set_exception(error)
        except Exception:  # noqa: BLE001 - it is logged, and ends the question
            log.exception("nccl_question_failed", extra=fields(remedy="report it with these lines of the log"))
            answer.set_exception(NotAskedError("the question failed: see the agent's log"))


def ask(pids: Mapping[int, int], world_size: int, proc: Path = Path("/proc")) -> NcclSeen:
    """Answer of the service of one of these ranks' processes. Takes up to 20 s. Raises NotAskedError."""
    try:
        return _ask(pids, world_size, proc)
    except OSError as error:
        raise NotAskedError(str(error)) from error


def _ask(pids: Mapping[int, int], world_size: int, proc: Path) -> NcclSeen:
    here = {rank: pid for rank, pid in pids.items() if pid and _same_network(proc, pid)}
    if not here:
        raise NotAskedError("its ranks live in another namespace of the network, or of processes")
    own = {number for pid in here.values() for number in _socket_numbers(proc, pid)}
    port = _port(proc, next(iter(here.values())))
    listening = [one.local for one in _sockets(proc) if one.listens and one.local[1] == port and one.number in own]
    if not listening:
        raise NotAskedError(f"none of its ranks listens at port {port}: NCCL before 2.24, or no communicator yet")
    service = _Service(_reachable(listening[0]), proc, here, time.monotonic() + 2 * ANSWER_SECONDS)
    known = {rank: _all_pids(proc, pid) for rank, pid in here.items()}
    try:
        return parsed(service.answer(as_json=True), world_size, known)
    except NotUnderstoodError as first:
        try:
            return parsed(service.answer(as_json=False), world_size, known)
        except NotUnderstoodError as error:
            raise NotAskedError(f"its answers are not understood: {first}; {error}") from error


@dataclass(frozen=True, slots=True)
class _Service:
    address: tuple[str, int]
    proc: Path
    pids: Mapping[int, int]  # of the gang's ranks: one of these answers
    deadline: float

    def answer(self, *, as_json: bool) -> bytes:
        """Raises NotUnderstoodError, also where the service does not know JSON; NotAskedError, and OSError."""
        with self._connected() as connection:
            lines = _Lines(connection, min(self.deadline, time.monotonic() + ANSWER_SECONDS))
            lines.send(f"TIMEOUT {GATHER_SECONDS}")
            lines.line()
            if as_json:
                lines.send("SET FORMAT json")
                if lines.line() != b"OK":
                    raise NotUnderstoodError("it prints no JSON")
            lines.send("STATUS" if as_json else "VERBOSE STATUS")
            return lines.rest(JSON_BYTES_MAX if as_json else TEXT_BYTES_MAX)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """A connection to a process of one of the ranks."""
        reason = "there was no time left"
        for _ in range(TRIES_MAX):
            if time.monotonic() >= self.deadline:
                break
            with socket.create_connection(self.address, LINE_SECONDS) as connection:
                lines = _Lines(connection, time.monotonic() + LINE_SECONDS)
                lines.send("CLIENT PROTOCOL 2")
                try:
                    greeting = lines.line()
                except (OSError, NotUnderstoodError) as error:
                    reason = f"it did not answer: {error}"
                    continue
                if not greeting.upper().startswith(b"SERVER PROTOCOL "):
                    raise NotAskedError("another service answers")
                if not self._is_of_gang(connection):
                    reason = "a process of another job answers"
                    continue
                yield connection
                return
        raise NotAskedError(reason)

    def _is_of_gang(self, connection: socket.socket) -> bool:
        """True if the socket at the other end is an open file of one of the ranks' processes."""
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        numbers = {one.number for one in _sockets(self.proc) if (one.local, one.remote) == (there, here)}
        return any(not numbers.isdisjoint(_socket_numbers(self.proc, pid)) for pid in self.pids.values())


class _Lines:
    """Reads within a time and a size. Raises TimeoutError and NotUnderstoodError."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._held = b""

    def send(self, line: str) -> None:
        self._connection.sendall(f"{line}\n".encode())

    def line(self) -> bytes:
        while b"\n" not in self._held:
            if len(self._held) > LINE_BYTES_MAX or not (more := self._more()):
                raise NotUnderstoodError("no line came")
            self._held += more
        line, _, self._held = self._held.partition(b"\n")
        return line.strip()

    def rest(self, bytes_max: int) -> bytes:
        """What comes until the service closes the connection."""
        parts, size = [self._held], len(self._held)
        while more := self._more():
            parts.append(more)
            size += len(more)
            if size > bytes_max:
                raise NotUnderstoodError(f"it is longer than {bytes_max} bytes")
        return b"".join(parts)

    def _more(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("its answer took too long")
        self._connection.settimeout(left)
        return self._connection.recv(65536)


def _sockets(proc: Path) -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), (proc / "self" / "net" / name).open("rb") as file:
            for line in file.read(SOCKETS_BYTES_MAX).splitlines()[1:]:
                words = line.decode("ascii", "replace").split()
                with contextlib.suppress(ValueError, IndexError):
                    yield _Socket(_address(words[1]), _address(words[2]), words[3] == "0A", words[9])


def _address(text: str) -> tuple[str, int]:
    """Host and port from hexadecimal, in words of the processor's byte order. An IPv4 address within IPv6 is IPv4."""
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    ordered = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    found = ipaddress.ip_address(ordered)
    inside = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(inside or found), int(port, 16)


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    host, port = address
    return (("::1" if ":" in host else "127.0.0.1") if is_every(host) else host), port


def _socket_numbers(proc: Path, pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for one in islice((proc / str(pid) / "fd").iterdir(), OPEN_FILES_MAX):
            with contextlib.suppress(OSError):
                target = str(one.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def _same_network(proc: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "ns/net").readlink() == (proc / "self/ns/net").readlink()
    return False


def _port(proc: Path, pid: int) -> int:
    """Port in the environment of the process. NCCL may have it from a file as well, which is not read."""
    with (proc / str(pid) / "environ").open("rb") as file:
        for one in file.read(ENVIRON_BYTES_MAX).split(b"\0"):
            name, _, value = one.partition(b"=")
            if name == b"NCCL_RAS_ADDR":
                with contextlib.suppress(ValueError):
                    return int(value.rpartition(b":")[2])
    return PORT


def _all_pids(proc: Path, pid: int) -> set[int]:
    """NCCL knows the one of its container."""
    found = {pid}
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                found |= {int(one) for one in line.split()[1:]}
    return found
