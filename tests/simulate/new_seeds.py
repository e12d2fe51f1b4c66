"""Seeds that no run has tried before: `python -m tests.simulate.new_seeds`. Part of `make test`.

The exit status is 1 where an invariant fails that no scenario in `tests/data/simulator/open` is about.
"""

from __future__ import annotations

import sys
import time

from tests.simulate.test_simulate import scenarios
from understudy_controlplane.simulate.run import simulate
from understudy_controlplane.simulate.scenario import draw

SEEDS = 300
SECONDS_MAX = 240.0


def main() -> int:
    known = {path.name.partition(".")[0] for path in scenarios("open")}
    first, began, tried = int(time.time()), time.monotonic(), 0
    failed: list[str] = []
    while tried < SEEDS and time.monotonic() - began < SECONDS_MAX:
        violation = simulate(draw(first + tried)).violation
        if violation is not None:
            note = " (an open defect has the same invariant)" if violation.invariant in known else ""
            print(f"seed {first + tried} fails: {violation}{note}", flush=True)
            failed += [] if note else [violation.invariant]
        tried += 1
    print(f"== simulator: seeds {first} to {first + tried - 1}, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
