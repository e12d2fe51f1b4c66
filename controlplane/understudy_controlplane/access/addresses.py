"""The addresses of nodes: Slurm's NodeAddr, and what the site adds. A host name counts with all its addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from understudy_controlplane.clock import Clock
from understudy_wire.addresses import canonical

KEPT_SECONDS = 60.0
LOOKED_UP_AT_ONCE = 4
LOOK_UPS_MAX = 256
"""Host names that are looked up or wait for it."""

Resolve = Callable[[str], list[str]]


class TooManyNames(Exception):
    """Too many host names wait already: the resolver is slow, or does not answer."""


class NotReadYet(Exception):
    """Slurm has not been read since the start of the control plane."""


class NodeAddresses:
    def __init__(
        self,
        of_slurm: Callable[[str], str | None],
        further: Callable[[], Mapping[str, Sequence[str]]],
        clock: Clock,
        resolve: Resolve | None = None,
        nodes: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`of_slurm(node)` is its NodeAddr; None: Slurm does not know the node. It raises NotReadYet. `further()` has
        more of each node. `resolve` may block. `nodes()` are all that Slurm knows.
        """
        self._of_slurm = of_slurm
        self._further = further
        self._clock = clock
        self._resolve = resolve or addresses_of_host
        self._nodes = nodes
        self._threads = ThreadPoolExecutor(LOOKED_UP_AT_ONCE, "resolver")
        self._looking_up: dict[str, asyncio.Future[list[str]]] = {}
        self._resolved: dict[str, tuple[float, frozenset[str]]] = {}

    async def of(self, node: str) -> frozenset[str] | None:
        """None: Slurm does not know the node. Raises NotReadYet, TooManyNames."""
        own = self._of_slurm(node)
        if own is None:
            return None
        found: frozenset[str] = frozenset()
        for host in (own, *self._further().get(node, ())):
            found |= await self._of_host(host)
        return found

    def node_at(self, host: str, address: str) -> str:
        """NodeName of the host that has this name and asks from this address; empty: not known. A NodeAddr that is not
        set is the node's NodeHostname.
        """
        found = [
            node
            for node in self._nodes()
            for own in (self._of_slurm(node) or "",)
            if canonical(own) == address or host in (own.partition(".")[0], node.partition(".")[0])
        ]
        return found[0] if len(found) == 1 else ""

    async def _of_host(self, host: str) -> frozenset[str]:
        if is_address(host):
            return frozenset({canonical(host)})
        known = self._resolved.get(host)
        now = self._clock.monotonic()
        if known is None or now - known[0] >= KEPT_SECONDS:
            known = now, frozenset(map(canonical, await self._look_up(host)))
            self._resolved[host] = known
        return known[1]

    async def _look_up(self, host: str) -> list[str]:
        """Looks up on threads of its own: a resolver that does not answer takes seconds of each, and reports wait for
        none.
        """
        found = self._looking_up.get(host)
        if found is None:
            if len(self._looking_up) >= LOOK_UPS_MAX:
                raise TooManyNames
            found = asyncio.get_running_loop().run_in_executor(self._threads, self._resolve, host)
            self._looking_up[host] = found
            found.add_done_callback(lambda _: self._looking_up.pop(host))
        return await asyncio.shield(found)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def addresses_of_host(host: str) -> list[str]:
    """Empty where the name has none."""
    try:
        return [str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):  # UnicodeError: it can be no host's name, such as "a..b"
        return []
