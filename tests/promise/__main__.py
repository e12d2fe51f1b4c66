"""Measures the matrix and writes `build/promise.json`; what is there already is kept, and measured with --again only.

`python -m tests.promise [--jobs A,B] [--faults A,B] [--timeouts 30,60] [--pools spare,none] [--again] [--minutes M]
[--parallel N]`
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

from tests import NOT_POSSIBLE_HERE, REPOSITORY
from tests.promise.bench import measure_alone
from tests.promise.cells import FAULTS, JOBS, POOLS, TIMEOUTS, batches, read, table, write
from tests.testbed.network import why_impossible

RESULT = REPOSITORY / "build" / "promise.json"


def main() -> int:
    options = _options()
    if why := why_impossible():
        print(f"not possible here: {why}")
        return NOT_POSSIBLE_HERE
    cells = read(RESULT)
    todo = [
        (batch, jobs)
        for batch in batches(options.timeouts, options.faults, options.pools)
        if (jobs := [job for job in options.jobs if options.again or (batch, job) not in cells])
    ]
    revision = _revision()
    ends_at = time.monotonic() + options.minutes * 60
    failed = left = 0
    # A process for each site: it holds the site's network, and may die with it.
    with ProcessPoolExecutor(options.parallel, get_context("spawn"), max_tasks_per_child=1) as processes:
        logs = RESULT.with_name("promise")
        futures = [processes.submit(measure_alone, batch, jobs, ends_at, logs) for batch, jobs in todo]
        for future in as_completed(futures):
            measured = future.result()
            failed += isinstance(measured, str)
            left += measured is None
            if isinstance(measured, list):
                cells |= {(one.batch, one.job): replace(one, revision=revision) for one in measured}
                write(RESULT, cells.values())
    print("\n".join(table(cells.values())))
    if left:
        print(f"{left} of {len(todo)} sites left for another run: {options.minutes:g} minutes are over")
    print(f"{RESULT}: {len(cells)} of {len(JOBS) * len(FAULTS) * len(TIMEOUTS) * len(POOLS)} cells measured")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.promise", description=__doc__)
    for name, all_of_them in (("jobs", JOBS), ("faults", FAULTS), ("pools", POOLS)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(all_of_them))
    parser.add_argument("--timeouts", type=lambda text: [int(one) for one in text.split(",")], default=list(TIMEOUTS))
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    parser.add_argument("--minutes", type=float, default=480.0, help="after which no other site is begun")
    parser.add_argument("--parallel", type=int, default=1, help="sites at the same time, each of 10 to 15 nodes")
    options = parser.parse_args()
    for name, known in (("jobs", JOBS), ("faults", FAULTS), ("pools", POOLS)):
        if unknown := {*getattr(options, name)} - {*known}:
            parser.error(f"--{name} {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return options


def _revision() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
