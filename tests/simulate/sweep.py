"""One disturbance at each moment of a recovery: `python -m tests.simulate.sweep [NAME...]`. Part of `make long`.

Seeds meet a given moment too rarely.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.simulator.run import simulate
from tests.simulator.scenario import Event, Kind, Scenario

BEGIN = 60.0
FAULTS = {
    "GPU fault in a gang": Event(BEGIN, Kind.XID, "n2", number=79),
    "GPU fault under a launcher": Event(BEGIN, Kind.XID, "n12", number=79),
    "drain at job end": Event(BEGIN, Kind.XID, "n14", number=63),
    "dead node": Event(BEGIN, Kind.NODE_DIES, "n2"),
    "hang": Event(BEGIN, Kind.RANK_HANGS, "1"),
    "test": Event(BEGIN, Kind.TESTS, "n14"),
}
LASTING_SECONDS = {
    Kind.SLURM_REFUSES: 150.0,  # longer than any step tries
    Kind.SLURM_LOSES_ANSWERS: 70.0,
    Kind.SLURM_CRASHES: 0.0,
    Kind.DELETES_RESERVATIONS: 0.0,
}
MOMENTS = (*(0.2 + 0.4 * number for number in range(15)), *(6.0 + 3.0 * number for number in range(22)))
"""Seconds after the fault: close together while the gang moves, then through repair, validation and return."""

KILLS = (Kind.KILLED_BEFORE_EFFECT, Kind.KILLED_AFTER_EFFECT)
EFFECTS = 30
DOWN_SECONDS = 7.0


def disturbances() -> Iterator[Event]:
    for kind, seconds in LASTING_SECONDS.items():
        for moment in MOMENTS:
            yield Event(round(BEGIN + moment, 2), kind, seconds=seconds)
    for kind in KILLS:
        for effect in range(EFFECTS):
            yield Event(BEGIN - 0.5, kind, seconds=DOWN_SECONDS, number=effect)


def main() -> int:
    tried, failed = 0, 0
    for name in sys.argv[1:] or FAULTS:
        for event in disturbances():
            events = sorted((FAULTS[name], event), key=lambda one: one.at)
            violation = simulate(Scenario(0, tuple(events))).violation
            tried += 1
            if violation is not None:
                failed += 1
                print(f"{name}, {event.at - BEGIN:+.1f} s {event}: {violation}", flush=True)
    print(f"{tried} moments tried, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
