"""How fast the simulator is, what its seeds find, and whether it finds code that is broken on purpose.

`python -m tests.bench.sim [SEEDS [MUTANT_SEEDS]]` writes build/bench/sim.json after each part. It exits with 1 where a
seed failed or a mutant was missed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests import REPOSITORY
from tests.simulate.mutants import MUTANTS
from tests.simulator.coverage import Coverage
from tests.simulator.run import simulate
from tests.simulator.scenario import NODES, draw, end_of

SEEDS = 240
MUTANT_SEEDS_MAX = 1000
SHARES = {NODES: 1.0, 64: 0.05, 400: 0.01}
"""Nodes → the share of the seeds that a cluster of this size gets, at least one: a large cluster takes long."""

REPORT = REPOSITORY / "build" / "bench" / "sim.json"


def found_at(name: str, seeds: int) -> dict[str, Any] | None:
    """The first seed that fails with the broken code, by which invariant, and not with the code as it is."""
    _, broken = MUTANTS[name]
    for seed in range(1, seeds + 1):
        scenario = draw(seed)
        with broken():
            violation = simulate(scenario).violation
        if violation is not None and simulate(scenario).violation is None:
            return {"seed": seed, "invariant": violation.invariant}
    return None


def try_seeds(nodes: int, seeds: int, coverage: Coverage) -> dict[str, Any]:
    failed, hours, began = [], 0.0, time.monotonic()
    for seed in range(1, seeds + 1):
        scenario = draw(seed, nodes)
        outcome = simulate(scenario)
        coverage.add(outcome.world)
        hours += end_of(scenario) / 3600
        if outcome.violation is not None:
            failed.append(seed)
            print(f"{nodes} nodes, seed {seed}: {outcome.violation}", flush=True)
    minutes = (time.monotonic() - began) / 60
    return {"tried": seeds, "failed": failed, "cluster_hours_per_minute": round(hours / minutes, 1)}


def write(figures: dict[str, Any]) -> None:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    mutant_seeds = int(sys.argv[2]) if len(sys.argv) > 2 else MUTANT_SEEDS_MAX
    coverage = Coverage()
    simulate(draw(0))  # the schema is created once
    sizes = {nodes: try_seeds(nodes, max(1, int(seeds * share)), coverage) for nodes, share in SHARES.items()}
    figures: dict[str, Any] = {
        "simulated_cluster_hours_per_minute": sizes[NODES]["cluster_hours_per_minute"],
        "seeds_tried": sum(one["tried"] for one in sizes.values()),
        "seeds_failed": sum(len(one["failed"]) for one in sizes.values()),
        "nodes": sizes,
        "not_covered": coverage.missing(),
    }
    write(figures)
    figures["mutants_seeds_max"] = mutant_seeds
    figures["mutants_found"] = {}
    for name in MUTANTS:
        figures["mutants_found"][name] = found_at(name, mutant_seeds)
        print(f"mutant {name}: {figures['mutants_found'][name]}", flush=True)
        figures["mutants_missed"] = sum(one is None for one in figures["mutants_found"].values())
        write(figures)
    print(json.dumps(figures, indent=2))
    return 1 if figures["seeds_failed"] or figures["mutants_missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
