"""Inputs that no run has tried before: `python -m tests.fuzz.new_inputs`. Part of `make test`.

An input that breaks a target shows a defect that may be older than the change at hand: it is printed and saved, and
fails nothing. It belongs into a test, which does.
"""

from __future__ import annotations

import logging
import time

from tests.fuzz.fuzzer import DefectError, Fuzzer
from tests.fuzz.targets import TARGETS

PROCESSOR_SECONDS = 30.0
"""For each target; docs/testing.md says what that reaches."""


def main() -> None:
    logging.disable()  # the agent's lines about what it refuses
    seed, tried, reached, broken = int(time.time()), 0, 0, 0
    for name, target in TARGETS.items():
        fuzzer = Fuzzer(target, seed)
        try:
            fuzzer.run(seconds=PROCESSOR_SECONDS)
        except DefectError as error:
            broken += 1
            print(
                f"FOUND BY THE FUZZER: {name}, seed {seed}: {error}; saved as {fuzzer.save(error.content)}", flush=True
            )
        tried += fuzzer.executions
        reached += len(fuzzer.found)
    print(
        f"== fuzzer: {tried} new inputs of {len(TARGETS)} kinds, {reached} reached new lines, {broken} broke a target"
    )


if __name__ == "__main__":
    main()
