"""`python -m tests.fuzz [TARGET ...] --seconds 600`: ends with 1 where an input breaks a target, and prints the input.

`--keep` adds inputs that reach new lines to tests/data/fuzz. An input that breaks a target becomes a test.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.fuzz.fuzzer import DefectError, Fuzzer
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=600.0, help="of processor time, for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="add what reaches new lines to the corpus")
    options = parser.parse_args()
    logging.disable()  # the agent's lines about what it refuses
    failed = False
    for name in options.targets or TARGETS:
        fuzzer = Fuzzer(TARGETS[name], options.seed)
        try:
            fuzzer.run(seconds=options.seconds)
            result = "clean"
        except DefectError as error:
            failed = True
            result = f"{error}; saved as {fuzzer.save(error.content)}"
        kept = len(list(fuzzer.keep())) if options.keep else 0
        sys.stdout.write(
            f"{name}: {fuzzer.executions} inputs, seed {options.seed}, {len(fuzzer.found)} reached new lines "
            f"({kept} kept): {result}\n"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
