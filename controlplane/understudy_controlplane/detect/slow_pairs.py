"""Slow transfers by where they are: a node all of whose transfers are slow, two nodes, a domain, or two of them. What
lies between nodes condemns none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.causes import Cause, second_signals
from understudy_controlplane.detect.slow_transfers import SlowTransfer, slow_transfers
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable

RULE = "straggler.transfers"

PEERS_MIN = 2
"""Nodes with which a node has slow transfers, from which on it is named and not what lies between."""

SHOWN_MAX = 8

Pair = tuple[str, str]
"""Two nodes in the order of their names; the same one twice: its own ranks."""


def slow_pairs(snapshot: Snapshot, policy: Straggler) -> Iterator[Finding]:
    for table in snapshot.progress.tables.values():
        slow: dict[Pair, list[SlowTransfer]] = {}
        for one in slow_transfers(table, policy):
            first, second = sorted((table.nodes[one.rank], table.nodes[one.peer]))
            if first in snapshot.nodes and second in snapshot.nodes:
                slow.setdefault((first, second), []).append(one)
        if slow:
            yield from _of_gang(snapshot, _Gang(table, slow))


@dataclass(frozen=True, slots=True)
class _Gang:
    table: StepTable
    slow: dict[Pair, list[SlowTransfer]]


def _of_gang(snapshot: Snapshot, gang: _Gang) -> Iterator[Finding]:
    left = dict(gang.slow)
    for name in sorted({node for pair in gang.slow for node in pair}):
        mine = {pair: slow for pair, slow in left.items() if name in pair}
        if (name, name) in mine or _is_alone(gang, name, list(mine)):
            yield _of_node(snapshot, gang, name, [one for slow in mine.values() for one in slow])
            left = {pair: slow for pair, slow in left.items() if pair not in mine}
    if not left:
        return
    place = _between(snapshot, list(left)) if len(left) > 1 else ""
    if place:
        yield _of_domain(snapshot, gang, place, left)
    else:
        for pair, slow in left.items():
            yield _of_domain(snapshot, gang, f"{pair[0]} - {pair[1]}", {pair: slow})


def _is_alone(gang: _Gang, node: str, slow: Sequence[Pair]) -> bool:
    """Its transfers with most other nodes are slow, and those nodes have no other slow ones."""
    known = gang.table.transfers
    if len(slow) < PEERS_MIN or known is None:
        return False
    names = gang.table.nodes
    others = {names[peer] for rank, peer in known.pairs.tolist() if names[rank] == node} - {node, ""}
    peers = {name for pair in slow for name in pair} - {node}
    elsewhere = [pair for pair in gang.slow if node not in pair and not peers.isdisjoint(pair)]
    return 2 * len(peers) > len(others) and not elsewhere


def _between(snapshot: Snapshot, pairs: Sequence[Pair]) -> str:
    """The smallest domain that has all of them, or the two that each pair joins; empty: there are none."""
    nodes = {name for pair in pairs for name in pair}
    running = {name for table in snapshot.progress.tables.values() for name in table.nodes if name}
    domains = {label: set(members) for label, members in snapshot.domains.items() if not running <= set(members)}
    inside = [label for label, members in domains.items() if nodes <= members]
    if inside:
        return min(inside, key=lambda label: (len(domains[label]), label))
    joined = [
        (one, other)
        for one, other in product(sorted(domains), repeat=2)
        if one < other
        and domains[one].isdisjoint(domains[other])
        and all({len(domains[one] & {*pair}), len(domains[other] & {*pair})} == {1} for pair in pairs)
    ]
    best = min(joined, key=lambda two: (len(domains[two[0]]) + len(domains[two[1]]), two), default=None)
    return f"{best[0]} - {best[1]}" if best else ""


def _of_node(snapshot: Snapshot, gang: _Gang, name: str, slow: Sequence[SlowTransfer]) -> Finding:
    view, table = snapshot.nodes[name], gang.table
    gpus = {table.gpus[rank] for one in slow for rank in (one.rank, one.peer) if table.nodes[rank] == name}
    explained, signals = reasons(view, gpus)
    worst = max(slow, key=lambda one: one.seconds - one.usual)
    return Finding(
        Signal.STRAGGLER_SUSPECTED,
        RULE,
        name,
        snapshot.now,
        f"its transfers with other nodes are slow: {_words(worst)}; {explained}",
        Evidence({**_evidence(gang, slow), "signals": signals}),
        job=table.job,
    )


def _of_domain(snapshot: Snapshot, gang: _Gang, place: str, slow: dict[Pair, list[SlowTransfer]]) -> Finding:
    nodes = sorted({name for pair in slow for name in pair})
    every = [one for of_pair in slow.values() for one in of_pair]
    worst = max(every, key=lambda one: one.seconds - one.usual)
    shown = ", ".join(f"{one} and {other}" for one, other in sorted(slow)[:SHOWN_MAX])
    words, ports = shown_by_ports(snapshot, nodes)
    return Finding(
        Signal.DOMAIN_FAULT,
        RULE,
        "",
        snapshot.now,
        f"transfers between {shown} are slow: {_words(worst)}; {words}",
        Evidence({**_evidence(gang, every), "ports": ports}),
        domain=place,
        nodes=tuple(nodes),
    )


def reasons(node: NodeView, gpus: Iterable[int | None]) -> tuple[str, list[Json]]:
    """What the node shows that may explain it: in words, and as evidence."""
    found = {signal for gpu in gpus for signal in second_signals(node, gpu)}
    words = "; ".join(sorted(words for _, words in found)) or "no second signal"
    return words, [*sorted(f"{cause}: {words}" for cause, words in found)]


def shown_by_ports(snapshot: Snapshot, names: Iterable[str]) -> tuple[str, list[Json]]:
    """What the counters of these nodes' ports show, in words and as evidence. It supports that the fabric is slow
    there, and condemns no node.
    """
    signals = ((name, *signal) for name in names for signal in second_signals(snapshot.nodes[name], None))
    found = [f"{name}: {words}" for name, cause, words in signals if cause is Cause.INFINIBAND][:SHOWN_MAX]
    return "; ".join(found) or "no port of them shows why", [*found]


def _words(slow: SlowTransfer) -> str:
    return (
        f"rank {slow.rank} waits {slow.seconds:.3g} s a step for rank {slow.peer}, where {slow.usual:.3g} s are usual, "
        f"and nothing shows that rank {slow.peer} is late itself; it costs up to {slow.share_lost:.0%} of all time"
    )


def _evidence(gang: _Gang, slow: Sequence[SlowTransfer]) -> dict[str, Json]:
    worst = max(slow, key=lambda one: one.seconds - one.usual)
    return {
        "job": gang.table.job.job_id,
        "pairs": [[one.rank, one.peer] for one in slow[:SHOWN_MAX]],
        "seconds": round(worst.seconds, 6),
        "usual_seconds": round(worst.usual, 6),
        "share_lost": round(worst.share_lost, 3),
    }
