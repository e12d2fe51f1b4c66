"""Inputs that no run has tried before: `python -m tests.fuzz.new_inputs`. Part of `make test`.

An input that breaks a target shows a defect that may be older than the change at hand: it is printed and saved, and
fails nothing. It belongs into a test, which does.
"""

from __future__ import annotations

import logging
import time

from tests.fuzz.fuzzer import DefectError, Fuzzer
from tests.fuzz.targets import TARGETS

SECONDS_MAX = 30.0
SECONDS_WITHOUT_NEW_MAX = 10.0
"""Of processor time, for each target; docs/testing.md says what that reaches."""


def main() -> None:
    logging.disable()  # the agent's lines about what it refuses
    seed, tried, reached, broken = int(time.time()), 0, 0, 0
    for name, target in TARGETS.items():
        fuzzer = Fuzzer(target, seed)
        try:
            fuzzer.run(seconds=SECONDS_MAX, seconds_without_new=SECONDS_WITHOUT_NEW_MAX)
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
