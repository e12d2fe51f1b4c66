"""Each kept scenario with one more event: `python -m tests.simulate.one_more [KIND...]`. Part of `make long`.

What was found once is close to what was not found yet: a scenario in thirty showed another defect so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from tests.simulate.cover import read, scenarios
from tests.simulator.run import simulate
from tests.simulator.scenario import TO_ALL, Event, Kind, Scenario

CLOCKS = (-3600, -60, 60, 3600)
BEFORE_SECONDS = 3.0
FIRST = 20.5
"""Before that the gangs have not started."""

LATER: dict[Kind, tuple[float, ...]] = {
    Kind.SLURM_CRASHES: (0.4, 6.0),
    Kind.SLURM_REFUSES: (-2.0, 0.3),
    Kind.SLURM_LOSES_ANSWERS: (-2.0, 0.3),
    Kind.SLURM_AWAY: (-1.0, 0.3),
    Kind.KILLED_BEFORE_EFFECT: (0.1,),
    Kind.KILLED_AFTER_EFFECT: (0.1,),
    Kind.DATABASE_AWAY: (0.3,),
    Kind.PAUSES_NOW: (0.3,),
    Kind.CANCELS_RECOVERY: (0.5,),
    Kind.DELETES_RESERVATIONS: (0.5,),
    Kind.RESUMES: (8.0,),
    Kind.DRAINS: (1.0,),
    Kind.HOLDS: (2.0,),
    Kind.RELEASES: (20.0,),
    Kind.TESTS: (3.0,),
    Kind.NODE_DIES: (1.0,),
    Kind.MANAGEMENT_CUT: (1.0,),
}
"""How many seconds after the last event."""

SECONDS = {
    Kind.SLURM_REFUSES: 100.0,
    Kind.SLURM_LOSES_ANSWERS: 30.0,
    Kind.SLURM_AWAY: 40.0,
    Kind.KILLED_BEFORE_EFFECT: 30.0,
    Kind.KILLED_AFTER_EFFECT: 30.0,
    Kind.DATABASE_AWAY: 30.0,
    Kind.MANAGEMENT_CUT: 40.0,
}
PAUSE_SECONDS = 70.0


def one_more(scenario: Scenario) -> Iterator[tuple[Event, ...]]:
    """Events to add to it."""
    kinds = {event.kind for event in scenario.events}
    first, last = (choose(event.at for event in scenario.events) for choose in (min, max))
    if Kind.CLOCK_SET not in kinds:
        for seconds in CLOCKS:
            yield (Event(max(FIRST, first - BEFORE_SECONDS), Kind.CLOCK_SET, number=seconds),)
    node = next((event.subject for event in reversed(scenario.events) if event.subject.startswith("n")), "n2")
    for kind, moments in LATER.items():
        for moment in moments:
            subject = "" if kind in TO_ALL else node
            event = Event(round(max(FIRST, last + moment), 2), kind, subject, SECONDS.get(kind, 0.0))
            after = Event(round(event.at + PAUSE_SECONDS, 2), Kind.UNPAUSES)
            yield (event, after) if kind is Kind.PAUSES_NOW else (event,)


def main() -> int:
    wanted = set(sys.argv[1:])
    tried, failed = 0, 0
    for path in scenarios("fixed"):
        scenario = read(path)
        for added in one_more(scenario):
            if wanted and added[0].kind.name not in wanted:
                continue
            events = tuple(sorted((*scenario.events, *added), key=lambda event: event.at))
            violation = simulate(msgspec.structs.replace(scenario, events=events)).violation
            tried += 1
            if violation is not None:
                failed += 1
                print(f"{path.stem} and {added[0]}: {violation}", flush=True)
    print(f"{tried} scenarios tried, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
