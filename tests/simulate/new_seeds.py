"""Seeds that no run has tried before: `python -m tests.simulate.new_seeds`. Part of `make test`.

A seed that fails shows a defect that may be older than the change at hand: it is printed, and fails nothing. Its
scenario belongs into `tests/data/simulator/open` (`understudy simulate --seed N` prints it), which does.
"""

from __future__ import annotations

import time

from understudy_controlplane.simulate.run import simulate
from understudy_controlplane.simulate.scenario import draw

SEEDS = 300
PROCESSOR_SECONDS_MAX = 600.0
"""A seed takes 0.5 s on the reference machine, and three times as long on a slow one beside other stages."""


def main() -> None:
    first, tried, failed = int(time.time()), 0, 0
    while tried < SEEDS and time.process_time() < PROCESSOR_SECONDS_MAX:
        violation = simulate(draw(first + tried)).violation
        if violation is not None:
            failed += 1
            print(f"FOUND BY THE SIMULATOR: seed {first + tried} fails: {violation}", flush=True)
        tried += 1
    print(f"== simulator: {tried} new seeds, {first} to {first + tried - 1}, {failed} failed")


if __name__ == "__main__":
    main()
