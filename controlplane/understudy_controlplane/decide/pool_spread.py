"""Chooses the nodes of the pool, so that the failure of a rack leaves spares elsewhere."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import DomainKind, Topology

SPREAD_OVER = (DomainKind.RACK, DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.POD)
"""The first kind of which a topology has more than one domain."""


def spread(
    snapshot: Snapshot,
    candidates: Sequence[str],
    count: int,
    standing: Callable[[str], object],
    beside: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """So many of the candidates, which come sorted by standing; of one standing each is taken from the domain with the
    most nodes in use by managed gangs for each spare there. `beside`: the spares besides them; None: all that are held.
    """
    domain = _domain_of(snapshot.topology)
    used = Counter(domain(name) for job in snapshot.jobs.values() if job.managed for name in job.slurm.nodes)
    if beside is None:
        beside = [node.name for node in snapshot.notable if node.is_spare]
    held = Counter(domain(name) for name in beside)
    chosen: list[str] = []
    for _, equal in groupby(candidates, key=standing):
        waiting: dict[str, deque[str]] = {}
        for name in equal:
            waiting.setdefault(domain(name), deque()).append(name)
        while waiting and len(chosen) < count:
            neediest = max(waiting, key=lambda one: _need(used[one], held[one]))
            chosen.append(waiting[neediest].popleft())
            held[neediest] += 1
            if not waiting[neediest]:
                del waiting[neediest]
    return tuple(chosen)


def _need(used: int, held: int) -> tuple[float, int]:
    """Need of a domain. Of two in equal need, such as two unused ones, the one with fewer spares comes first."""
    return used / (held + 1), -held


def _domain_of(topology: Topology) -> Callable[[str], str]:
    """Finds the domain of a node: the first of several, such as leaf switches of rails; the empty name if it is in
    none.
    """
    kind = next((one for one in SPREAD_OVER if sum(domain.kind is one for domain in topology.domains) > 1), None)
    if kind is None:
        return lambda _name: ""
    return lambda name: next(iter(topology.names_of(name, kind)), "")
