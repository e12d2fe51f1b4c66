"""Runs benchmarks: `python -m tests.bench [NAME...] [--small]`. Each writes `build/bench/NAME.json`.

Without names those of `make bench`. With `--small` they run for seconds, and show only that they run.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import structlog

from tests.bench.result import Result, Size, write

USUAL = ("ingest", "slurm_read", "tick", "hook", "footprint", "straggler")
MORE = ("placement", "access", "operators", "dashboard", "program_files")


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
    for name in arguments.names or USUAL:
        print(f"== {name}; load {os.getloadavg()[0]:.1f}", flush=True)
        results = measure(name, Size.SMALL if arguments.small else Size.FULL)
        for one in results:
            beside = "".join(f", {rival} {value:.4g}" for rival, value in one.rivals.items() if value is not None)
            print(f"{one.name}: median {one.median:.4g} {one.unit}, worst of {one.n} {one.worst:.4g}{beside}")
        if not arguments.small:
            print(write(name, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
