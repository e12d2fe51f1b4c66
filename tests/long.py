"""What takes hours: `make long`. Writes `build/long/DATE.md` and keeps all output beside it.

`make test` takes a sample of each: fewer generated examples, each path once, no benchmarks.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import NOT_POSSIBLE_HERE, REPOSITORY
from tests.bench.__main__ import MORE, USUAL

REPORTS = REPOSITORY / "build" / "long"
STAGES = ("unit", "patient", "integration", "cluster", "long", "timed", "cluster-timed")
BENCHMARKS = (
    *(f"tests.bench {name}" for name in (*USUAL, *MORE)),
    *(f"tests.bench.{name}" for name in ("sim", "drawn", "database", "recovery", "compare")),
)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: Sequence[str]


def new_seeds(count: int) -> tuple[str, ...]:
    """Seeds that no run has tried, by the clock: the simulator prints those that fail, and ends with 1."""
    return ("--seed", str(int(time.time())), "--seeds", str(count))


def parts() -> list[Part]:
    python = (sys.executable, "-m")
    examples = ("-m", "hypothesis", "--hypothesis-profile", "long", "-n", "2", "--dist", "worksteal")
    return [
        Part("fuzzing", (*python, "tests.fuzz", "--seconds", "600")),
        Part("whole site under attack", (*python, "tests.fuzz.whole", "--seconds", "600")),
        Part("requests", (*python, "tests.fuzz.openapi", "--seconds", "180")),
        Part("generated examples", (*python, "pytest", "-q", *examples)),
        *(Part(stage, (*python, "tests.run", stage)) for stage in STAGES),
        Part("simulator, new seeds", (*python, "tests.simulator", *new_seeds(2000))),
        Part("two control planes", (*python, "tests.simulator.two", *new_seeds(1000))),
        Part("two control planes, moment by moment", (*python, "tests.simulator.two", "--each-moment")),
        Part("simulator, moment by moment", (*python, "tests.simulate.sweep")),
        Part("simulator, one more event", (*python, "tests.simulate.one_more")),
        Part("simulator, domains that fail", (*python, "tests.simulate.domains")),
        Part("simulator, real rates of failures", (*python, "tests.simulate.real_rates")),
        Part("signals, a healthy day, a year of faults", (*python, "tests.signals", "--check", "--day", "--trace")),
        Part("examples of the documents", (*python, "tests.documented_examples")),
        Part("promise", (*python, "tests.promise", "--again")),
        Part("audit of packages", (*python, "tests.audit")),
        Part("versions of Python", (*python, "tests.python_versions")),
        *(Part(name, (*python, *name.split())) for name in BENCHMARKS),
    ]


def run(part: Part, log: Path) -> tuple[int, float]:
    """Exit status and seconds."""
    began = time.monotonic()
    with log.open("w") as output:
        # Each part keeps its own logs of stages and of flaky tests.
        environment = os.environ | {"UNDERSTUDY_BUILD": str(log.with_suffix(""))}
        done = subprocess.run(
            part.command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    return done.returncode, time.monotonic() - began


def main() -> int:
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    logs = REPORTS / date
    logs.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{date}.md"
    lines = [f"# Long tests of {date}", "", "| part | result | seconds | last line |", "|---|---|---|---|"]
    failed = impossible = 0
    for part in parts():
        print(f"== {part.name}", flush=True)
        log = logs / f"{part.name.replace(',', '').replace(' ', '-')}.log"
        code, seconds = run(part, log)
        result = {0: "passed", NOT_POSSIBLE_HERE: "not possible"}.get(code, "FAILED")
        failed += result == "FAILED"
        impossible += result == "not possible"
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1].replace("|", "/")
        lines.append(f"| {part.name} | {result} | {seconds:.0f} | {last} |")
        report.write_text("\n".join([*lines, ""]))
        print(lines[-1], flush=True)
    print(f"{report}: {len(parts()) - failed - impossible} passed, {failed} failed, {impossible} not possible here")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
