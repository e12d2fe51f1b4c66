"""The guards' defaults in the whole control plane, at the failure rates that clusters have: a year of 400 servers, and
Llama 3's. `python -m tests.simulate.real_rates [NODES...]`; part of `make long`.

Each run is the worst stretch of the year: no guard holds back what a node that has failed needs, and every gang works
again. A rule that is wrong accuses all nodes at once, and drains what the breaker bears and no more; once a person has
closed the breaker, no more than the budget.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.decide.test_budgets_at_real_rates import Fault, Moment, llama_of, trace_of, worst_moments
from tests.simulator.run import Outcome, simulate
from tests.simulator.scenario import Event, Kind, Scenario, Settings, node_names
from tests.simulator.world import PERSON_SECONDS
from understudy_controlplane.config import NoSpare
from understudy_controlplane.fleet.decision import Because

GUARDS = frozenset(
    {
        Because.FLEET_BUDGET,
        Because.HOURLY_BUDGET,
        Because.JOB_BUDGET,
        Because.RESTART_BUDGET,
        Because.RELEASE_BUDGET,
        Because.DOMAIN_BUDGET,
        Because.MOVE_BUDGET,
        Because.BREAKER,
        Because.MASS_HANG,
        Because.MASS_SILENCE,
    }
)
HOUR = 3600.0
BEGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """How a fleet of so many nodes is simulated.

    Nodes that are down already when the stretch begins fail one after the other before it, `apart_seconds` apart: the
    breaker of a larger fleet bears more of them within ten minutes.
    """

    hours: float
    apart_seconds: float
    bears: int  # nodes that the breaker lets be drained within ten minutes
    budget: int  # that may be quarantined at once
    down_max: int | None = None


SIZES = {
    400: Size(24.0, 400.0, bears=10, budget=12),
    2048: Size(6.0, 400.0, bears=10, budget=20),
    12_500: Size(1.0, 60.0, bears=25, budget=125, down_max=20),
}
"""Rates of smaller fleets: at 12,500 nodes each failure takes minutes of processor time, and over 180 nodes are down
already.
"""

REST_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Stretch:
    source: str
    nodes: int
    hours: float
    repairs: bool
    failures: int
    scenario: Scenario


@dataclass(slots=True)
class Measured:
    """`wrong`: what was promised and is not so."""

    wrong: list[str] = field(default_factory=list)
    drained_after: list[float] = field(default_factory=list)  # seconds


SOURCES: dict[str, Callable[[int], list[Fault]]] = {"trace": trace_of, "llama": llama_of}


def settings(nodes: int, repairs: bool) -> Settings:
    return Settings(spares=nodes // 50, no_spare=NoSpare.IDLE, repairs=repairs, validates=repairs, default_guards=True)


def stretch(source: str, nodes: int, hours: float, *, repairs: bool) -> Stretch:
    """Around the moment at which the most nodes have failed within an hour, with those that are down already."""
    faults, size = SOURCES[source](nodes), SIZES[nodes]
    apart = size.apart_seconds
    worst: Moment = max(worst_moments(faults), key=lambda one: (len(one.lately), len(one.down)))
    first = worst.fault.at - hours * HOUR / 2
    down = [one for one in faults if one.at < first < one.until]
    down = down[-(size.down_max or len(down)) :]
    within = [one for one in faults if first <= one.at < first + hours * HOUR]
    began = BEGIN_SECONDS + len(down) * apart
    numbers = {name: number for number, name in enumerate(sorted({one.node for one in (*down, *within)}))}
    names = node_names(nodes)

    def event(one: Fault, at: float) -> Event:
        place = numbers[one.node] * nodes // len(numbers)  # all over the fleet
        return Event(round(at, 2), Kind.FAILS, names[place], round(max(one.until - first + began - at, 60.0), 1))

    before = [event(one, BEGIN_SECONDS + place * apart) for place, one in enumerate(down)]
    events = (*before, *(event(one, began + one.at - first) for one in within))
    scenario = Scenario(
        nodes,
        events,
        settings(nodes, repairs),
        nodes,
        leaf_switches=max(2, nodes // 32),
        seconds=began + hours * HOUR + REST_SECONDS,
        quiet_seconds=300.0,
    )
    return Stretch(source, nodes, hours, repairs, len(events), scenario)


def judged(one: Stretch) -> Measured:
    outcome = simulate(one.scenario, trace=True)
    measured = Measured(wrong=_wrong(outcome))
    begun = drains(outcome)
    for event in one.scenario.events:
        drained = [at for at, name in begun if name == event.subject and at >= event.at]
        if drained and drained[0] - event.at < 60.0:
            measured.drained_after.append(drained[0] - event.at)
        else:
            measured.wrong.append(f"{event.subject}, broken since {event.at:.0f} s, was not drained within a minute")
    return measured


def drains(outcome: Outcome) -> list[tuple[float, str]]:
    """When which node was drained."""
    words = (line for line in outcome.world.story if line[1].startswith("Slurm: drain_node "))
    return [(at, line.split()[2]) for at, line in words]


def _wrong(outcome: Outcome) -> list[str]:
    held = held_back(outcome)
    return [
        *([f"violated: {outcome.violation}"] if outcome.violation is not None else []),
        *(f"held back by {why}: {count} decisions" for why, count in held.items()),
        *(f"gang {gang.number} does not work" for gang in outcome.world.cluster.gangs if not gang.computes),
    ]


def held_back(outcome: Outcome) -> Counter[str]:
    core = outcome.world.core
    assert core is not None
    counted: Counter[str] = Counter()
    for metric in core.loop.pulse.meters.decisions.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total") and sample.labels["because"] in GUARDS:
                counted[sample.labels["because"]] += int(sample.value)
    return counted


def accused_wrongly(nodes: int) -> Outcome:
    """All nodes at once, by a rule that is wrong."""
    accused = Event(BEGIN_SECONDS, Kind.WRONGLY_ACCUSED, "n1", number=nodes)
    return simulate(
        Scenario(nodes, (accused,), settings(nodes, True), nodes, leaf_switches=max(2, nodes // 32), seconds=400.0),
        trace=True,
    )


def drained(outcome: Outcome) -> tuple[int, int]:
    """How many nodes until the breaker opened, and after a person has closed it again."""
    found = drains(outcome)
    return len({name for at, name in found if at < BEGIN_SECONDS + PERSON_SECONDS[0]}), len({name for _, name in found})


def main(sizes: Sequence[int]) -> int:
    failed = 0
    for nodes in sizes:
        for source in SOURCES:
            began, one = time.process_time(), stretch(source, nodes, SIZES[nodes].hours, repairs=True)
            measured = judged(one)
            failed += bool(measured.wrong)
            slowest = max(measured.drained_after, default=0.0)
            print(
                f"{nodes} nodes, {source}, {one.scenario.seconds / HOUR:.1f} h: {one.failures} failures, each drained "
                f"within {slowest:.1f} s; {measured.wrong or 'no guard held anything back'} "
                f"({time.process_time() - began:.0f} s)",
                flush=True,
            )
        numbers = drained(accused_wrongly(nodes))
        may_be = SIZES[nodes].bears, SIZES[nodes].budget
        failed += numbers[0] != may_be[0] or numbers[1] > may_be[1]
        print(f"{nodes} nodes, all accused wrongly: {numbers} drained, at most {may_be} may be", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([int(one) for one in sys.argv[1:]] or list(SIZES)))
