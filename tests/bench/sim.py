"""How fast the simulator is, what its seeds find, and whether it finds code that is broken on purpose.

`python -m tests.bench.sim [SEEDS]` writes build/bench/sim.json.
"""

from __future__ import annotations

import json
import sys
import time

from tests import REPOSITORY
from tests.simulate.mutants import MUTANTS
from understudy_controlplane.simulate.coverage import Coverage
from understudy_controlplane.simulate.run import simulate
from understudy_controlplane.simulate.scenario import END, draw

SEEDS = 240
MUTANT_SEEDS_MAX = 1000
REPORT = REPOSITORY / "build" / "bench" / "sim.json"


def found_at(name: str) -> int | None:
    """The first seed in which the mutant violates its invariant."""
    invariant, broken = MUTANTS[name]
    with broken():
        for seed in range(1, MUTANT_SEEDS_MAX + 1):
            violation = simulate(draw(seed)).violation
            if violation is not None and violation.invariant == invariant:
                return seed
    return None


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    coverage, failed = Coverage(), []
    simulate(draw(0))  # the schema is created once
    began = time.monotonic()
    for seed in range(1, seeds + 1):
        outcome = simulate(draw(seed))
        coverage.add(outcome.world)
        if outcome.violation is not None:
            failed.append(seed)
            print(f"seed {seed}: {outcome.violation}", flush=True)
    minutes = (time.monotonic() - began) / 60
    mutants = {name: found_at(name) for name in MUTANTS}
    figures = {
        "simulated_cluster_hours_per_minute": round(seeds * END / 3600 / minutes, 1),
        "seeds_tried": seeds,
        "seeds_failed": len(failed),
        "failed": failed,
        "mutants_missed": sum(seed is None for seed in mutants.values()),
        "mutants_found_at_seed": mutants,
        "not_covered": coverage.missing(),
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
