"""Connects to the slurmd of silent nodes, to see which of them are dead.

slurmctld itself pings its nodes every SlurmdTimeout/3 seconds only. slurmd logs a line for each connection that sends
nothing, so only nodes that are silent already are probed.
"""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeRecord
from understudy_controlplane.fleet.slurm import Service, SlurmNode
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.slurm.slurmds import ask_slurmds

PROBES_AT_ONCE = 64
"""Most probes in one tick: each may take the whole probe timeout."""

RETRY_SECONDS = 60.0
"""A slurmd that never answered is probed again after this time, then after twice the time, and so on..."""

RETRIES_DOUBLED_MAX = 6
"""... up to about an hour: behind a firewall each probe takes the whole timeout, and a fleet has thousands of nodes."""


ADDRESSES_MAX = 3
"""Addresses of one node that are tried: each is an open file, and so many probes run at once."""

LookUp = Callable[[str, int], Sequence[Any]]
"""Signature of `socket.getaddrinfo`: its timeout is the resolver's own, of many seconds."""

_looks_up = threading.BoundedSemaphore(2 * PROBES_AT_ONCE)


def _resolved(host: str, port: int) -> Sequence[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def slurmd_answers(address: str, port: int, timeout_seconds: float, look_up: LookUp = _resolved) -> bool:
    """True if slurmd ends a connection that sends nothing, as it does after some 10 ms.

    To be connected proves nothing: on a node that stands still, because it has no memory left or its root file system
    hangs, the kernel accepts connections for slurmd. Refused, unreachable, unknown and too slow are all "no".
    """
    deadline = time.monotonic() + timeout_seconds
    return _ends_a_connection(_addresses_of(address, port, timeout_seconds, look_up), deadline)


def _addresses_of(host: str, port: int, timeout_seconds: float, look_up: LookUp) -> Sequence[Any]:
    """Empty where they are not known in time. A thread that waits for longer delays nothing, not even the end."""
    with suppress(OSError):  # a number needs no resolver
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    if not _looks_up.acquire(blocking=False):
        return ()
    found: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(look_up(host, port))
        except OSError:
            found.put(())
        finally:
            _looks_up.release()

    threading.Thread(target=ask, name="slurmd-name", daemon=True).start()
    try:
        return found.get(timeout=timeout_seconds)
    except queue.Empty:
        return ()


def _ends_a_connection(addresses: Sequence[Any], deadline: float) -> bool:
    """Tries all at the same time: a name may also stand for a network on which the node cannot be reached."""
    with selectors.PollSelector() as waiting, ExitStack() as opened:
        for family, kind, protocol, _, address in addresses[:ADDRESSES_MAX]:
            with suppress(OSError):
                connection = opened.enter_context(socket.socket(family, kind, protocol))
                connection.setblocking(False)
                connection.connect_ex(address)
                waiting.register(connection, selectors.EVENT_WRITE)
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, events in waiting.select(left):
                connection = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_READ:
                        connection.recv(1)
                        return True
                    connection.shutdown(socket.SHUT_WR)  # fails where it is not connected
                    waiting.modify(connection, selectors.EVENT_READ)
                except OSError:
                    waiting.unregister(connection)
    return False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    silent_since: Mapping[str, float]  # nodes probed just now without an answer → since when
    first_answers: tuple[str, ...]  # nodes whose slurmd answered for the first time


class SlurmdProbe:
    """Only a node whose slurmd answered once is probed when it falls silent: elsewhere a firewall may be in the way.

    Each node is tried for that when its agent is first heard. Idle nodes that are out of service are not probed.
    """

    def __init__(self, answers: Callable[[SlurmNode], bool], started_at: float) -> None:
        self._answers = answers
        self._started_at = started_at
        self._retry_at: dict[str, float] = {}
        self._tries: Counter[str] = Counter()
        self._probed_at: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}

    def probe(
        self,
        records: Mapping[str, NodeRecord],
        slurm_nodes: Mapping[str, SlurmNode],
        heard: Mapping[str, Heard],
        silent_before: float,
        now: float,
    ) -> ProbeResult:
        """A node that was heard last before `silent_before` is silent."""
        silent = self._silent_nodes(records, slurm_nodes, heard, silent_before)
        names = {node.name for node in silent}
        self._probed_at = {name: at for name, at in self._probed_at.items() if name in names}
        self._silent_since = {name: at for name, at in self._silent_since.items() if name in names}
        # Nodes take turns if there are more than can be probed in one tick.
        silent = sorted(silent, key=lambda node: self._probed_at.get(node.name, 0.0))[:PROBES_AT_ONCE]
        untried = [*islice(self._untried_nodes(records, slurm_nodes, heard, now), PROBES_AT_ONCE - len(silent))]
        self._probed_at |= {node.name: now for node in silent}
        self._schedule_retries(untried, now)
        answers = ask_slurmds([*silent, *untried], self._answers)
        for node in silent:
            if answers[node.name]:
                self._silent_since.pop(node.name, None)
            else:
                self._silent_since.setdefault(node.name, now)
        return ProbeResult(
            # Only nodes probed in this tick: what follows from silence must follow from a fresh probe.
            {node.name: self._silent_since[node.name] for node in silent if node.name in self._silent_since},
            tuple(node.name for node in untried if answers[node.name]),
        )

    def _silent_nodes(
        self,
        records: Mapping[str, NodeRecord],
        slurm_nodes: Mapping[str, SlurmNode],
        heard: Mapping[str, Heard],
        silent_before: float,
    ) -> list[SlurmNode]:
        found: list[SlurmNode] = []
        if self._started_at >= silent_before:
            return found
        for name in [name for name in records if (one := heard.get(name)) is None or one.at < silent_before]:
            record, slurm = records[name], slurm_nodes.get(name)
            if slurm is None or slurm.service is Service.AWAY or record.slurmd_seen_at is None:
                continue
            idle = record.state in OUT_OF_SERVICE and slurm.base_state in ("IDLE", "DOWN")
            if not idle:
                found.append(slurm)
        # Detection concludes nothing when so many are silent.
        return [] if len(found) > max(PROBES_AT_ONCE, len(records) // 2) else found

    def _untried_nodes(
        self,
        records: Mapping[str, NodeRecord],
        slurm_nodes: Mapping[str, SlurmNode],
        heard: Mapping[str, Heard],
        now: float,
    ) -> Iterator[SlurmNode]:
        return (
            slurm
            for name, record in records.items()
            if record.slurmd_seen_at is None
            and name in heard
            and now > self._retry_at.get(name, 0.0)
            and (slurm := slurm_nodes.get(name)) is not None
            and slurm.service is not Service.AWAY
        )

    def _schedule_retries(self, untried: Sequence[SlurmNode], now: float) -> None:
        for node in untried:
            doubled = min(self._tries[node.name], RETRIES_DOUBLED_MAX)
            self._retry_at[node.name] = now + RETRY_SECONDS * 2**doubled
            self._tries[node.name] += 1
