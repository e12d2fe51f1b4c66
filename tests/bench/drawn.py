"""Which of the drawn mutants (`tests/simulate/drawn.py`) the simulator finds, and by which seed first.

`python -m tests.bench.drawn [SEEDS [NAME...]]` writes build/bench/drawn.json after each mutant, and prints a table for
docs/reliability.md. Each seed runs once without mutants first: where none of a mutant's edits would have changed an
answer, its story is the same with the mutant, and it is not run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from tests import REPOSITORY
from tests.simulate.drawn import DRAWN
from tests.simulate.edits import edited, tried
from understudy_controlplane.simulate.run import simulate
from understudy_controlplane.simulate.scenario import draw

SEEDS = 300

REPORT = REPOSITORY / "build" / "bench" / "drawn.json"


def reached_by(seeds: Sequence[int], names: Sequence[str]) -> tuple[dict[str, list[int]], list[int]]:
    """The seeds that a mutant may change, by its name, and those that fail without any."""
    reached: dict[str, list[int]] = {name: [] for name in names}
    failed = []
    pure = [(name, one) for name in names for one in DRAWN[name].edits if not one.is_effect]
    always = {name for name in names if all(one.is_effect for one in DRAWN[name].edits)}
    for seed in seeds:
        with tried(pure) as differ:
            violation = simulate(draw(seed)).violation
        if violation is not None:
            failed.append(seed)
            print(f"seed {seed} fails without a mutant: {violation}", flush=True)
            continue
        for name in differ | always:
            reached[name].append(seed)
    return reached, failed


def found_at(name: str, seeds: Sequence[int]) -> dict[str, Any] | None:
    for seed in seeds:
        with edited(*DRAWN[name].edits):
            violation = simulate(draw(seed)).violation
        if violation is not None:
            return {"seed": seed, "invariant": violation.invariant}
    return None


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    names = sys.argv[2:] or [*DRAWN]
    simulate(draw(0))  # the schema is created once
    reached, failed = reached_by(range(1, seeds + 1), names)
    figures: dict[str, Any] = {"seeds": seeds, "failed": failed, "mutants": {}}
    for name in names:
        found = found_at(name, reached[name])
        figures["mutants"][name] = {"seeds_that_reach_it": len(reached[name]), "found": found}
        print(f"{name}: reached by {len(reached[name])} seeds, found by {found}", flush=True)
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
