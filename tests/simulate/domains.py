"""Racks, cooling loops and power feeds that fail in large fleets: `python -m tests.simulate.domains [NODES]`.

Each is one failure: one ticket about the domain, no circuit breaker, every gang at work again in the end, and every
node that has booted back in service.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from tests.simulator.run import Outcome, simulate
from tests.simulator.scenario import Event, Kind, Scenario
from understudy_controlplane.fleet.node import NodeState

RACK_NODES = 16


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    racks: int
    seconds: float
    """Until its nodes have booted, or the ports are up; 0: they do not come back."""

    ports_alone: bool = False
    """A switch takes the ports of its nodes, and their agents go on reporting."""


FAULTS = (
    Fault("switch", 1, 0.0),
    Fault("switch", 1, 0.0, ports_alone=True),
    Fault("cdu", 2, 30.0),
    Fault("cdu", 2, 0.0),
    Fault("power_feed", 3, 0.0),
)


def simulated(fault: Fault, nodes: int) -> Outcome:
    """The second rack fails, and those after it."""
    first, size = RACK_NODES + 1, fault.racks * RACK_NODES
    names = [f"n{number}" for number in range(first, first + size)]
    domains = {} if fault.kind == "switch" else {f"{fault.kind} x": names}
    events = (
        tuple(Event(60.0, Kind.PORT_DOWN, name, fault.seconds) for name in names)
        if fault.ports_alone
        else (Event(60.0, Kind.RACK_DIES, names[0], fault.seconds, size),)
    )
    scenario = Scenario(0, events, nodes=nodes, leaf_switches=nodes // RACK_NODES, domains=domains)
    return simulate(scenario, trace=True)


def wrong(fault: Fault, outcome: Outcome) -> list[str]:
    """What was promised and is not so."""
    story = [words for _, words in outcome.world.story]
    kinds = ("switch", "cdu", "power_feed")
    about = [words for words in story if words.startswith(tuple(f"ticket for {k} " for k in kinds))]
    label = "switch rack2" if fault.kind == "switch" else f"{fault.kind} x"
    return [
        *([f"violated: {outcome.violation}"] if outcome.violation is not None else []),
        *([f"tickets about domains: {about}"] if about != [f"ticket for {label}"] else []),
        *(["the circuit breaker opened"] if any("circuit breaker" in words for words in story) else []),
        *(f"gang {gang.number} does not work" for gang in outcome.world.cluster.gangs if not gang.computes),
        *([f"still out of service: {left}"] if fault.seconds and (left := _out_of_service(outcome)) else []),
    ]


def _out_of_service(outcome: Outcome) -> list[str]:
    core = outcome.world.core
    assert core is not None
    snapshot = core.loop.pulse.snapshot
    assert snapshot is not None
    back = (NodeState.IN_SERVICE, NodeState.PROBATION)
    return [name for name, node in snapshot.nodes.items() if node.state not in back]


def main() -> int:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    failed = 0
    for fault in FAULTS:
        began = time.process_time()
        found = wrong(fault, simulated(fault, nodes))
        failed += bool(found)
        print(f"{nodes} nodes, {fault}: {found or 'as promised'} ({time.process_time() - began:.0f} s)", flush=True)
    print(f"{len(FAULTS) - failed} of {len(FAULTS)} as promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
