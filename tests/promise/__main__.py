"""Measures the matrix and writes `build/promise.json`; what is there already is kept, and measured with --again only.

`python -m tests.promise [--jobs A,B] [--faults A,B] [--timeouts 30,60] [--pools spare,none] [--again] [--minutes M]`
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import NOT_POSSIBLE_HERE, REPOSITORY
from tests.promise.bench import measure
from tests.promise.cells import FAULTS, JOBS, POOLS, TIMEOUTS, batches, read, table, write
from tests.testbed.cluster import ClusterError
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
    failed = 0
    for number, (batch, jobs) in enumerate(todo, start=1):
        if time.monotonic() > ends_at:
            print(f"{len(todo) - number + 1} of {len(todo)} left for another run: {options.minutes:g} minutes are over")
            break
        what = f"{batch.fault}, SlurmdTimeout {batch.slurmd_timeout} s, pool: {batch.pool}"
        print(f"{number} of {len(todo)}: {what}", flush=True)
        directory = Path(tempfile.mkdtemp(prefix="up-"))  # short: sockets lie below it
        try:
            measured = measure(batch, jobs, directory, lambda line: print(line, flush=True))
        except ClusterError as error:
            failed += 1
            print(f"    not measured: {error}", flush=True)
            continue
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        cells |= {(batch, one.job): one for one in measured}
        write(RESULT, cells.values(), revision)
    print("\n".join(table(cells.values())))
    print(f"{RESULT}: {len(cells)} of {len(JOBS) * len(FAULTS) * len(TIMEOUTS) * len(POOLS)} cells measured")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.promise", description=__doc__)
    for name, all_of_them in (("jobs", JOBS), ("faults", FAULTS), ("pools", POOLS)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(all_of_them))
    parser.add_argument("--timeouts", type=lambda text: [int(one) for one in text.split(",")], default=list(TIMEOUTS))
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    parser.add_argument("--minutes", type=float, default=480.0, help="after which no other site is begun")
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
