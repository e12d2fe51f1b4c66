"""Scenarios that enter each row of the table and show each recovery step done, failed and killed:
`python -m tests.simulate.cover [SEEDS]`.

It runs the kept scenarios, prints what none of them has seen, and looks for that: in new seeds, and by disturbing kept
scenarios in each of their steps. What it finds belongs into `tests/data/simulator/covers`, where it writes it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests import REPOSITORY
from tests.simulator.coverage import EVERYTHING, Coverage
from tests.simulator.ledger import Violation
from tests.simulator.run import Outcome, simulate
from tests.simulator.scenario import Event, Kind, Scenario, draw

CORPUS = REPOSITORY / "tests" / "data" / "simulator"
KEPT = ("fixed", "covers")

CANNOT_BE = {
    "row 72": "nothing that happens in a scenario makes a detector fail (tests/detect/test_failing_detectors.py does)",
    "row 98": "as row 72",
    "row 133": "gangs of a scenario are small: many hangs would have to name it (tests/detect/test_hung_again.py)",
    "row 265": "no provider replaces a node of a scenario (tests/recover/test_provider_answers.py has one)",
    "row 380": "ranks of a scenario do not show what they wait for (tests/acceptance/test_hangs.py)",
    "row 400": "agents of a scenario hear one control plane (tests/recover/test_two_leaders.py has two)",
    "step open_ticket failed": "a ticket is a row in the database: without it no round goes on",
    "step await_peers failed": "a node stops waiting for its peers before the step times out",
    "step exclude_nodes failed": "the gang begins by itself, two minutes after its requeue, before the step times out",
}

FIRST = 21.0
DOWN_SECONDS = 20.0
REFUSES_SECONDS = 170.0
EFFECTS = 9
COMMITS = 6


def scenarios(folder: str) -> list[Path]:
    return sorted((CORPUS / folder).glob("*.json"))


def read(path: Path) -> Scenario:
    return msgspec.json.decode(path.read_bytes(), type=Scenario)


@dataclass
class Seen:
    """What the kept scenarios have found, by their names, and seen."""

    violations: dict[str, Violation] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def missing(self) -> set[str]:
        return set(EVERYTHING - self.coverage.seen() - CANNOT_BE.keys())


def run_kept(*folders: str) -> Seen:
    seen = Seen()
    for path in (path for folder in folders for path in scenarios(folder)):
        outcome = simulate(read(path))
        seen.coverage.add(outcome.world)
        if outcome.violation is not None:
            seen.violations[path.stem] = outcome.violation
    return seen


def covered(outcome: Outcome) -> set[str]:
    coverage = Coverage()
    coverage.add(outcome.world)
    return set() if outcome.violation is not None else coverage.seen()


def candidates(seeds: int) -> Iterator[Scenario]:
    first = int(time.time())
    yield from (draw(first + number) for number in range(seeds))
    for path in (path for folder in KEPT for path in scenarios(folder)):
        yield from disturbed(read(path))


def disturbed(scenario: Scenario) -> Iterator[Scenario]:
    """The control plane is killed in a step, and Slurm refuses it or what follows it, once for each name of a step."""
    moments: dict[str, float] = {}
    for at, words in simulate(scenario, trace=True).world.story:
        step = re.match(r"step_(?:begun|done): recovery \d+, step (\w+)", words)
        if step:
            moments.setdefault(step[1], at)
    for at in sorted({max(FIRST, moment) for moment in moments.values()}):
        refused = Event(round(at - 0.2, 2), Kind.SLURM_REFUSES, seconds=REFUSES_SECONDS)
        yield _with(scenario, refused)
        for number in range(COMMITS):
            yield _with(scenario, Event(round(at - 0.3, 2), Kind.KILLED_AT_COMMIT, "", DOWN_SECONDS, number + 1))
        for number in range(EFFECTS):
            killed = Event(round(at - 0.05, 2), Kind.KILLED_AFTER_EFFECT, "", DOWN_SECONDS, number)
            yield _with(scenario, killed)
            yield _with(scenario, killed, msgspec.structs.replace(refused, at=round(at + 5.0, 2)))


def _with(scenario: Scenario, *added: Event) -> Scenario:
    events = sorted((*scenario.events, *added), key=lambda event: event.at)
    return msgspec.structs.replace(scenario, events=tuple(events))


def main() -> int:
    seen = run_kept(*KEPT)
    print("\n".join(seen.coverage.report()))
    missing = seen.missing
    print(f"not seen, of {len(EVERYTHING)}: {', '.join(sorted(missing)) or 'none'}", flush=True)
    for scenario in candidates(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
        if not missing:
            break
        found = covered(simulate(scenario)) & missing
        if found:
            missing -= found
            path = CORPUS / "covers" / f"{min(found).replace(' ', '_')}.json"
            path.write_bytes(msgspec.json.format(msgspec.json.encode(scenario)) + b"\n")
            print(f"{path.name}: {', '.join(sorted(found))}", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
