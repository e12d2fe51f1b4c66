"""Injects every signal at once, each on a node or a gang of its own, and records what is decided first about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.signals.cases import CASES, EXPECTED, GANG_CASES, NOTHING, Case
from tests.signals.virtual_fleet import Fleet
from tests.signals.virtual_node import VirtualNode
from understudy_controlplane.fleet.node import NodeState

GPUS = 4
SPARES = 12
HEALTHY = 30
"""Idle nodes beside, so that no sign is one of a third of the fleet, and gangs find nodes."""

MFU_EXPECTED = 0.4
"""MFU of gangs that report their tokens."""

WARM_UP_SECONDS = 320.0
UNBOUNDED = {
    "quarantined_nodes_min": 1000,
    "quarantines_per_hour_min": 1000,
    "waiting_nodes_min": 1000,
    "domain_share_max": 1.0,
    "breaker_nodes_min": 1000,
    "breaker_share_max": 1.0,
    "gang_moves_min": 1000,
    "gang_moves_per_hour_min": 1000,
    "gang_moves_domain_share": 1.0,
    "gang_moves_domain_min": 1000,
}
"""Everything fails at once here: no guard may hold anything back."""


class Found(msgspec.Struct, frozen=True):
    """One row of the table."""

    source: str
    signal: str
    injected: str
    rule: str  # empty: nothing is found
    state: str  # of the node, then; empty: it stays
    action: str
    seconds: float | None  # after the injection; within a tick of the control plane


FINE_SECONDS = 640.0
"""All but the slowest signals are found by then."""

WHOLE_SECONDS = 2400.0


def ticks(until: float) -> Iterator[float]:
    """Seconds to the next one: short at first, when most is found."""
    passed = 0.0
    while passed < until:
        seconds = 1.0 if passed < 70 else 5.0 if passed < FINE_SECONDS else 20.0
        passed += seconds
        yield seconds


def measure(folder: Path, seconds: float = WHOLE_SECONDS) -> list[Found]:
    seats = sum(case.nodes for case in GANG_CASES)
    names = [f"n{number}" for number in range(1, seats + len(CASES) + SPARES + HEALTHY + 1)]
    fleet = Fleet(
        folder,
        names,
        GPUS,
        guards=UNBOUNDED,
        spares={"count": SPARES},
        hang={"together_gangs": 100},
        straggler={"mfu_expected": MFU_EXPECTED},
    )
    try:
        return list(_measure(fleet, seconds))
    finally:
        fleet.close()


def _measure(fleet: Fleet, until: float) -> Iterator[Found]:
    for _ in range(3):
        fleet.tick(1.0)
    gangs = [
        fleet.submit(case.nodes, f"user{number}", marks_collectives=case.marks_collectives, ranks_per_node=GPUS)
        for number, case in enumerate(GANG_CASES)
    ]
    for _ in range(round(WARM_UP_SECONDS / 5)):
        fleet.tick(5.0)
    idle = [node for name, node in fleet.nodes.items() if _is_idle(fleet, name)]
    nodes = dict(zip((case.signal for case in CASES), idle, strict=False))
    at = fleet.now
    due: list[tuple[float, Callable[[], None]]] = []
    for case in CASES:
        due += [(at, _of_node(fleet, nodes[case.signal], case.inject))]
        due += [(at + after, _of_node(fleet, nodes[case.signal], change)) for after, change in case.later]
    for gang_case, gang in zip(GANG_CASES, gangs, strict=True):
        gang_case.inject(fleet, gang)
    for seconds in ticks(until):
        for change in [change for moment, change in due if moment <= fleet.now]:
            change()
        due = [one for one in due if one[0] > fleet.now]
        fleet.tick(seconds)
    decisions = fleet.decisions(at)
    for case in CASES:
        yield _found(case, [one for one in decisions if one["subject"] == nodes[case.signal].name], at)
    for gang_case, gang in zip(GANG_CASES, gangs, strict=True):
        about = {f"job {gang.job_id}", *gang.nodes}
        own = [one for one in decisions if one["subject"] in about or _names(one["subject"], gang.nodes)]
        yield _found(Case("rank", gang_case.signal, gang_case.injected, _never, gang_case.rule), own, at)


def _names(subject: str, nodes: Sequence[str]) -> bool:
    """Two of them, as in "n1 - n2"."""
    return {*subject.split(" - ")} <= {*nodes}


def _is_idle(fleet: Fleet, name: str) -> bool:
    spares = {node for one in fleet.slurm.reservations() for node in one.nodes}
    return name not in spares and not any(name in gang.nodes for gang in fleet.gangs)


def _of_node(fleet: Fleet, node: VirtualNode, change: Callable[[Fleet, VirtualNode], None]) -> Callable[[], None]:
    return lambda: change(fleet, node)


def _never(_fleet: Fleet, _node: VirtualNode) -> None:
    raise AssertionError


def _found(case: Case, decisions: list[dict[str, Any]], at: float) -> Found:
    """The decision by the rule that has to find it, or the first unexpected one. Of several the one that takes the node
    out of service: a slow node is a suspect before its gang leaves it.
    """
    expected = [one for one in decisions if one["rule"] == case.rule]
    expected.sort(key=lambda one: one["to_state"] != NodeState.QUARANTINED.value)
    first = next(iter(expected or decisions), None)
    if first is None:
        return Found(case.source, case.signal, case.injected, "", "", "", None)
    return Found(
        case.source,
        case.signal,
        case.injected,
        first["rule"],
        first["to_state"] or "",
        first["action"],
        round(first["at"] - at, 1),
    )


def as_expected(found: list[Found]) -> list[str]:
    """What differs from the cases, in words."""
    missing = [f"{signal} was not measured" for signal in EXPECTED.keys() - {one.signal for one in found}]
    return missing + [
        f"{one.signal}: {one.rule or NOTHING} instead of {EXPECTED[one.signal]}"
        for one in found
        if (one.rule or NOTHING) != EXPECTED[one.signal]
    ]
