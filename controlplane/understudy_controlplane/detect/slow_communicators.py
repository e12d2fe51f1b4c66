"""Communicators of NCCL that are slow while their gang trains, from what its ranks' hooks read in Inspector's files.

A communicator's collectives take half as long again as those of its peers in each of three minutes. Peers have the same
role as well, and are spread over as many switches: another stage overlaps more, and a longer way takes longer. Groups
within one node that have no role may be of different stages, and make no node a suspect. What the counters of the ports
show is held against it. A node may become a suspect by it, and nothing else follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.detect.slow_collectives import (
    PARTS,
    Communicator,
    Kind,
    Member,
    SlowPlace,
    What,
    slow_places,
)
from understudy_controlplane.detect.slow_pairs import reasons, shown_by_ports
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import CommunicatorTimes, StepTable
from understudy_controlplane.fleet.topology import DomainKind

RULE = "straggler.collectives"

OLD_SECONDS = 180.0
"""Minutes that ended longer ago show nothing of now."""
SHOWN_MAX = 8
OF_THE_NETWORK = frozenset({DomainKind.NVLINK_BLOCK, DomainKind.SWITCH, DomainKind.POD})


def slow_communicators(snapshot: Snapshot) -> Iterator[Finding]:
    for table in snapshot.progress.tables.values():
        if table.communicators.known and snapshot.now - table.communicators.at <= OLD_SECONDS:
            for place in _places(snapshot, table)[:SHOWN_MAX]:
                if all(name in snapshot.nodes for name in place.nodes):
                    yield _finding(snapshot, table, place)


def _places(snapshot: Snapshot, table: StepTable) -> list[SlowPlace]:
    """Judged once for each minute: nothing of it changes before the next."""
    basis = (snapshot.topology, table.nodes, table.roles, table.gpus)
    kept = table.communicators.kept.get(RULE)
    if isinstance(kept, tuple) and kept[0][0] is basis[0] and kept[0][1:] == basis[1:]:
        known: list[SlowPlace] = kept[1]
        return known
    timed = table.communicators.known
    places = slow_places([_with_places(snapshot, table, one) for one in timed], least=PARTS)
    may_differ = {one.name for one in timed if one.nodes == 1 and not _role(table, one)}
    found = [one for one in places if may_differ.isdisjoint(slow.communicator.name for slow in one.slow)]
    table.communicators.kept[RULE] = (basis, found)
    return found


def _role(table: StepTable, one: CommunicatorTimes) -> str:
    """Role of all its ranks; empty: they have none, or several."""
    roles = {table.roles[rank] for rank in one.ranks}
    return roles.pop() if len(roles) == 1 else ""


def _with_places(snapshot: Snapshot, table: StepTable, one: CommunicatorTimes) -> Communicator:
    members = tuple(Member(table.nodes[rank], table.gpus[rank]) for rank in one.ranks)
    role = _role(table, one)
    purpose = f"{one.purpose} {role}" if role else one.purpose
    of_node = snapshot.topology.of_node
    spread = {
        tuple(domain.label for domain in of_node.get(member.node, ()) if domain.kind in OF_THE_NETWORK)
        for member in members
    }
    return Communicator(
        one.name,
        members,
        {
            Kind(purpose, len(members), one.nodes, kind.operation, kind.size_bytes, len(spread)): seconds
            for kind, seconds in one.seconds.items()
        },
    )


def _finding(snapshot: Snapshot, table: StepTable, place: SlowPlace) -> Finding:
    if place.what is What.NODE:
        (name,) = place.nodes
        gpus = {gpu for node, gpu in zip(table.nodes, table.gpus, strict=True) if node == name}
        words, signals = reasons(snapshot.nodes[name], gpus)
        return Finding(
            Signal.STRAGGLER_SUSPECTED,
            RULE,
            name,
            snapshot.now,
            f"its collectives are slow: {_words(place)}; {words}",
            Evidence({**_evidence(table, place), "signals": signals}),
            job=table.job,
        )
    words, ports = shown_by_ports(snapshot, place.nodes)
    label = _label(place)
    return Finding(
        Signal.DOMAIN_FAULT,
        RULE,
        "",
        snapshot.now,
        f"collectives between {label} are slow: {_words(place)}; {words}",
        Evidence({**_evidence(table, place), "ports": ports}),
        domain=label,
        nodes=place.nodes,
    )


def _label(place: SlowPlace) -> str:
    ends = f"{place.nodes[0]} - {place.nodes[-1]}"
    if place.what is What.PAIR:
        return ends
    rail = f"GPU {place.place} of " if place.what is What.RAIL else ""
    return f"{rail}{ends} ({counted(len(place.nodes), 'node')})"


def _words(place: SlowPlace) -> str:
    worst = place.slow[0]
    return (
        f"{worst.kind.operation} of {worst.kind.size_bytes} bytes takes {worst.seconds * 1e3:.3g} ms, "
        f"{worst.factor:.1f} times as long as in {counted(worst.peers, 'other communicator')} "
        f"({worst.usual_seconds * 1e3:.3g} ms), in each of the last {PARTS} minutes"
    )


def _evidence(table: StepTable, place: SlowPlace) -> dict[str, Json]:
    worst = place.slow[0]
    return {
        "job": table.job.job_id,
        "communicators": [one.communicator.name for one in place.slow[:SHOWN_MAX]],
        "what": place.what.value,
        "gpu": place.place,
        "seconds": round(worst.seconds, 6),
        "usual_seconds": round(worst.usual_seconds, 6),
        "factor": round(worst.factor, 2),
        "peers": worst.peers,
    }
