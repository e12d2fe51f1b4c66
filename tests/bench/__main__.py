"""Runs benchmarks: `python -m tests.bench [NAME...] [--small]`. Each writes `build/bench/NAME.json`.

Without names those of `make bench`. With `--small` they run for seconds, and show only that they run.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

import structlog

from tests.bench.result import Result, Size, write

USUAL = ("report", "tick", "event", "start", "hook", "footprint")
MORE = (
    "scale",
    "slurm_read",
    "straggler",
    "placement",
    "access",
    "operators",
    "dashboard",
    "program_files",
    "ha",
    "hang",
)


def measure(name: str, size: Size) -> Sequence[Result]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found: Sequence[Result] = import_module(f"tests.bench.{name}").measure(size)
    finally:
        structlog.configure(**before)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*USUAL, *MORE, []], metavar="NAME")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    names = arguments.names or USUAL
    if len(names) > 1:  # each by a process of its own: what one leaves in memory is none of the next one's
        small = ["--small"] if arguments.small else []
        commands = [[sys.executable, "-m", "tests.bench", one, *small] for one in names]
        return max(subprocess.run(one, check=False).returncode for one in commands)
    for name in names:
        print(f"== {name}; load {os.getloadavg()[0]:.1f}", flush=True)
        results = measure(name, Size.SMALL if arguments.small else Size.FULL)
        for one in results:
            print(one)
        if not arguments.small:
            print(write(name, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
