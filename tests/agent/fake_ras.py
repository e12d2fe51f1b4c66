"""NCCL's RAS service as its source prints: src/ras/client_support.cc of 2.24 and 2.25 (counts of all collectives,
missing ranks in one line), of 2.26 to 2.28.3 (counts by kind, missing ranks in lines), of 2.28.7 to 2.30 (also JSON).
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

Say = Callable[[socket.socket, bytes], bool]
"""What a service says to a command instead of an answer. True: that was all."""

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


@dataclass(frozen=True, slots=True)
class FakeRank:
    rank: int
    begun: int = 100  # AllReduce
    broadcasts: int = 3
    pid: int = 0
    host: str = "10.0.0.1"
    missing: bool = False
    dead: bool = False
    finalized: bool = False

    @property
    def line(self) -> str:
        return f"GPU {self.rank % 8} managed by process {self.pid} on node {self.host}"

    def counted(self, kind: str) -> int:
        return {"AllReduce": self.begun, "Broadcast": self.broadcasts, "collective": self.begun + self.broadcasts}[kind]


@dataclass(frozen=True, slots=True)
class FakeCommunicator:
    ranks: Sequence[FakeRank]
    hash: int = 0x27A079B828FF1A75

    @property
    def known(self) -> list[FakeRank]:
        return [one for one in self.ranks if not one.missing]

    @property
    def missing(self) -> list[FakeRank]:
        return [one for one in self.ranks if one.missing]

    def differ(self, kind: str) -> bool:
        return len({one.counted(kind) for one in self.known}) > 1


def as_json(version: str, communicators: Sequence[FakeCommunicator]) -> str:
    return (
        json.dumps(
            {
                "nccl_version": version,
                "cuda_runtime_version": 13000,
                "cuda_driver_version": 13000,
                "timestamp": "2025-12-19 13:06:53",
                "communicators_count": len(communicators),
                "communicators": [_communicator_json(one) for one in communicators],
                "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
            },
            indent=2,
        )
        + "\n"
    )


def _communicator_json(one: FakeCommunicator) -> dict[str, object]:
    return {
        "hash": f"0x{one.hash:x}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(one.ranks),
        "ranks_count": len(one.known),
        "missing_ranks_count": len(one.missing),
        "ranks": [
            {
                **_place_json(rank),
                "status": {
                    "init_state": 0,
                    "async_error": 0,
                    "finalize_called": rank.finalized,
                    "destroy_flag": False,
                    "abort_flag": False,
                },
                "collective_counts": dict.fromkeys(KINDS, 0) | {"Broadcast": rank.broadcasts, "AllReduce": rank.begun},
            }
            for rank in one.known
        ],
        "missing_ranks": [
            {**_place_json(rank), "status": {"unresponsive": not rank.dead, "considered_dead": rank.dead}}
            for rank in one.missing
        ],
    }


def _place_json(rank: FakeRank) -> dict[str, object]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "cuda_dev": rank.rank % 8,
        "nvml_dev": rank.rank % 8,
    }


def as_text(version: str, communicators: Sequence[FakeCommunicator], *, verbose: bool = True) -> str:
    return "".join(f"{line}\n" for line in _lines(version, communicators, verbose=verbose))


def _lines(version: str, communicators: Sequence[FakeCommunicator], *, verbose: bool) -> Iterator[str]:
    older = version.startswith(("2.24", "2.25"))
    yield f"NCCL version {version} compiled with CUDA 12.8"
    yield from ("CUDA runtime version 12080, driver version 12080", "", "Job summary", "===========", "")
    yield "  Nodes  Processes         GPUs  Processes     GPUs"
    yield "(total)   per node  per process    (total)  (total)"
    yield f"{4:7d}  {8:9d}  {1:11d}  {32:9d}  {32:7d}"
    yield from ("", "Communicators... (0.00s)", "=============", "")
    if communicators or older:
        yield "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"
        yield "    #  in group  per comm  per node  per comm  in group"
    if not communicators:
        yield "No communicator data collected!"
    for group, one in enumerate(communicators):
        errors = ["INCOMPLETE"] * bool(one.missing) + ["MISMATCH"] * one.differ("collective")
        size, shown = len(one.ranks), ",".join(errors) or "OK"
        yield f"{group:5d}  {1:8d}  {4:8d}  {'7-8':>8s}  {size:8d}  {len(one.known):8d}  {'RUNNING':>8s}  {shown:>6s}"
    yield from ("", "Errors", "======", "", *_processes(communicators))
    for group, one in enumerate(communicators):
        yield from _incomplete(group, one, older=older) if one.missing else ()
    yield from ("Warnings", "========", "")
    if any(not rank.dead for one in communicators for rank in one.missing):
        yield from ("TIMEOUT", "  Encountered 2 communication timeouts while gathering communicator data", "")
    for group, one in enumerate(communicators):
        kinds = ["collective"] if older else ["Broadcast", "AllReduce"]
        if any(one.differ(kind) for kind in kinds):
            yield f"#{group}-0 ({one.hash:016x}) MISMATCH"
            for kind in kinds:
                if one.differ(kind):
                    yield from _mismatch(one, kind, verbose=verbose, older=older)
            yield ""


def _processes(communicators: Sequence[FakeCommunicator]) -> Iterator[str]:
    missing = sorted({rank.pid: rank for one in communicators for rank in one.missing}.items())
    dead = [rank for _, rank in missing if rank.dead]
    unresponsive = [rank for _, rank in missing if not rank.dead]
    if unresponsive:
        yield "INCOMPLETE"
        yield f"  Missing communicator data from {_counted(len(unresponsive), 'job process', 'es')}"
        yield from (f"  Process {rank.pid} on node {rank.host} managing GPU {rank.rank % 8}" for rank in unresponsive)
        yield ""
    if dead:
        are = "es are" if len(dead) > 1 else " is"
        yield from ("DEAD", f"  {len(dead)} job process{are} considered dead (unreachable via the RAS network)")
        yield from (f"  Process {rank.pid} on node {rank.host} managing GPU {rank.rank % 8}" for rank in dead)
        yield ""


def _incomplete(group: int, one: FakeCommunicator, *, older: bool) -> Iterator[str]:
    yield f"#{group}-0 ({one.hash:016x}) INCOMPLETE"
    yield f"  Missing communicator data from {_counted(len(one.missing), 'rank', 's')}"
    if older:
        ranks = ",".join(str(rank.rank) for rank in one.missing)
        yield f"  The missing rank{'s' if len(one.missing) > 1 else ''}: {ranks[:1023]}"
    else:
        yield from (f"  Rank {rank.rank} -- {rank.line}" for rank in one.missing)
    yield ""


def _mismatch(one: FakeCommunicator, kind: str, *, verbose: bool, older: bool) -> Iterator[str]:
    yield f"  Communicator ranks have different {kind} operation counts"
    counts = Counter(rank.counted(kind) for rank in one.known)
    for begun, count in sorted(counts.items(), key=lambda item: (-item[1], -item[0])):
        reported = f"launched up to operation {begun}" if begun or older else "not launched any operations"
        if count > 1:
            yield f"  {count} ranks have {reported}"
        few = count < len(one.ranks) / 2 if verbose else count <= 10 and count <= len(one.ranks) / 4
        for rank in one.known if count == 1 or few else ():
            if rank.counted(kind) == begun:
                yield f"  Rank {rank.rank}{f' has {reported}' if count == 1 else ''} -- {rank.line}"


def _counted(count: int, what: str, ending: str) -> str:
    return f"{count} {what}{ending if count > 1 else ''}"


@dataclass(slots=True)
class FakeRas:
    """Listens as `rasClientInitSocket` does, and answers as `rasClientEventLoop`."""

    version: str = "2.29.2"
    communicators: Sequence[FakeCommunicator] = ()
    say: Say | None = None  # instead; True: it has answered this command
    asked: list[bytes] = field(default_factory=list)
    _listening: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    def __enter__(self) -> Self:
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        as_json_asked = False
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    command = line.strip().lower()
                    self.asked.append(command)
                    if self.say is not None and self.say(connection, command):
                        continue
                    if command.startswith(b"client protocol "):
                        connection.sendall(b"SERVER PROTOCOL 2\n")
                    elif command.startswith(b"timeout "):
                        connection.sendall(b"OK\n")
                    elif command == b"set format json" and self.version >= "2.28.7":
                        as_json_asked = True
                        connection.sendall(b"OK\n")
                    elif command in (b"status", b"verbose status"):
                        verbose = command.startswith(b"verbose")
                        text = (
                            as_json(self.version, self.communicators)
                            if as_json_asked
                            else as_text(self.version, self.communicators, verbose=verbose)
                        )
                        connection.sendall(text.encode())
                        return
                    else:
                        connection.sendall(b"ERROR: Unknown command " + command + b"\n")
            except OSError:
                return
