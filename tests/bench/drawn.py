"""Finds drawn mutants and defects of a review (`tests/simulate/drawn.py`) in the simulator, and a seed of each.

`python -m tests.bench.drawn [SEEDS [NAME...]]` writes build/bench/drawn.json after each seed. A seed runs once without
mutants: where none of a mutant's edits would have changed an answer, its story is the same with the mutant, and it is
not run again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests import REPOSITORY
from tests.simulate.drawn import DRAWN, FOUND_BY, REVIEWED
from tests.simulate.edits import edited, tried
from tests.simulator.run import simulate
from tests.simulator.scenario import draw

ALL = DRAWN | REVIEWED
SEEDS = 300

REPORT = REPOSITORY / "build" / "bench" / "drawn.json"


def search(seeds: Iterable[int], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """After each seed what is known by then."""
    found: dict[str, Any] = {}
    reached: Counter[str] = Counter()
    failed: list[int] = []
    for seed in seeds:
        left = [name for name in names if name not in found]
        with tried([(name, one) for name in left for one in ALL[name].edits if one.can_be_tried]) as differ:
            violation = simulate(draw(seed)).violation
        if violation is not None:
            failed.append(seed)
            print(f"seed {seed} fails without a mutant: {violation}", flush=True)
            continue
        differ |= {name for name in left if not any(one.can_be_tried for one in ALL[name].edits)}
        reached.update(differ)
        for name in sorted(differ):
            with edited(*ALL[name].edits):
                violation = simulate(draw(seed)).violation
            if violation is not None:
                found[name] = {"seed": seed, "invariant": violation.invariant}
                print(f"{name}: seed {seed}: {violation}", flush=True)
        missed = {name: {"reached_by_seeds": reached[name]} for name in names if name not in found}
        yield {"seeds": seed, "failed": failed, "found": found, "missed": missed}


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    simulate(draw(0))  # the schema is created once
    for figures in search(dict.fromkeys((*FOUND_BY.values(), *range(1, seeds + 1))), sys.argv[2:] or [*ALL]):
        REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
