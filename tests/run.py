"""Runs stages of the tests: `python -m tests.run lint unit cluster`.

A failed test of any stage but `unit` is run once more, after all stages, with nothing but the failed tests of its file.
A test that passes only then is flaky: it is listed at the end, and `build/flaky/` keeps the log of its stage and that
of the second run. The exit status is 0 where no test failed twice. `build/test/STAGE.log` is the output of each stage.
The variable UNDERSTUDY_BUILD names another folder than `build`.

The first stage collects all tests, and writes which marks those of each file have: the other stages collect only the
files that have tests for them.

Tests with processes and clusters wait much, so some stages run beside the next ones, with their output in their logs
alone. One that gives way has the lowest priority, too. A stage that promises times says which of them it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests import NEED_TORCH, REPOSITORY

BUILD = Path(os.environ.get("UNDERSTUDY_BUILD", REPOSITORY / "build"))
LOGS = BUILD / "test"
FLAKY = BUILD / "flaky"
MARKS = LOGS / "marks.json"
"""File -> the marks of its tests, each combination once."""
RERUNS_MAX = 12
"""More failures than this in one stage have one cause, and it is not the machine's speed."""

# Linux shares the processors between sessions first (sched(7), autogroup): each daemon of a cluster has one of its own,
# and within a session alone the priority would mean nothing to them. Not every kernel has such groups.
LOWEST_PRIORITY = ("nice", "-n", "19", "sh", "-c", '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec "$0" "$@"')
running: list[subprocess.Popen[str]] = []

PYTEST_RAN = (0, 1, 5)
"""Exit codes of pytest: all passed, some failed, none were selected. Others are errors of pytest or of its user."""


PYTEST = (sys.executable, "-m", "pytest")


@dataclass(frozen=True, slots=True)
class Stage:
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    """A stage of pytest runs the tests with all marks of the former and none of the latter."""
    what: str = ""
    options: tuple[str, ...] = ()
    slurm_versions: tuple[str, ...] = ()
    """Those that its tests need beside this machine's own."""
    depends_on_machine: bool = True
    beside: bool = False
    gives_way: bool = False
    command: tuple[str, ...] = PYTEST
    waits_for: tuple[str, ...] = ()
    """Stages beside it that have ended before it begins."""

    @property
    def expression(self) -> str:
        """The marks of its tests, as `pytest -m` has them."""
        return " and ".join((*self.wanted, *(f"not {mark}" for mark in self._unwanted)))

    def has(self, marks: frozenset[str]) -> bool:
        return marks.issuperset(self.wanted) and marks.isdisjoint(self._unwanted)

    @property
    def _unwanted(self) -> tuple[str, ...]:
        return self.unwanted if "long" in self.wanted else (*self.unwanted, "long")


SIDE_BY_SIDE = ("-n", "2", "--dist", "worksteal")
# Servers and what PyTorch wrote are made once for a file: all its tests are one process's, but in files of ONE_BY_ONE.
# These tests and those on clusters run at the same time and mostly wait: seven processes keep two cores busy. With
# eleven, programs that Slurm starts took longer than the tests' patience.
BY_FILE = ("-n", "3", "--dist", "loadfile")
CLUSTERS = ("-n", "4", "--dist", "loadgroup")
# The demo, and beside it the launcher's cluster, which mostly waits. A promise that is not kept is tried again, alone.
TWO_CLUSTERS = ("-n", "2", "--dist", "loadgroup")
NEWEST_SLURM = "26.05"
CLEAN_DEBIAN = "22.05"
STAGES = {
    "lint": Stage(
        what="format, lint, types, walls between packages", beside=True, gives_way=True, command=("make", "lint")
    ),
    "unit": Stage(
        unwanted=("integration", "timed", "cluster"),
        options=(*SIDE_BY_SIDE, "--timeout", "60", *(f"--ignore=tests/{file}" for file in NEED_TORCH)),
        depends_on_machine=False,
    ),
    # The lowest priority leaves little beside busy stages, and these tests promise no times: they may take longer.
    "patient": Stage(("patient",), options=(*SIDE_BY_SIDE, "--timeout", "1500"), beside=True, gives_way=True),
    "integration": Stage(
        ("integration",),
        ("patient", "timed", "cluster"),
        options=BY_FILE,
        slurm_versions=(NEWEST_SLURM,),  # it has the newest Python
        beside=True,
    ),
    "cluster": Stage(("cluster",), ("timed",), options=CLUSTERS, slurm_versions=(NEWEST_SLURM, CLEAN_DEBIAN)),
    "long": Stage(("long",), options=CLUSTERS, slurm_versions=(NEWEST_SLURM, CLEAN_DEBIAN, "24.11")),
    # Its promises are of seconds: what gives way takes none.
    "cluster-timed": Stage(("cluster", "timed"), options=TWO_CLUSTERS, waits_for=("integration",)),
    "timed": Stage(("timed",), ("cluster",), waits_for=("lint", "patient", "integration")),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    stage: str
    counts: Counter[str]
    failed: tuple[str, ...]
    """What pytest calls these tests; of a file that could not be collected, its path."""
    broken: bool
    seconds: float


def run_stage(name: str, arguments: Sequence[str]) -> Outcome:
    stage = STAGES[name]
    beside = f" (beside the next stages; output: {LOGS / name}.log)" if stage.beside else ""
    print(f"== {name}: {stage.what or stage.expression}{beside}", flush=True)
    cache = LOGS / f"{name}.cache"
    shutil.rmtree(cache, ignore_errors=True)
    began = time.monotonic()
    if stage.command != PYTEST:
        code = run_program(stage.command, LOGS / f"{name}.log", stage)
        return Outcome(name, Counter(), (), code != 0, time.monotonic() - began)
    options = [
        "-m",
        stage.expression,
        "-q",
        "-rs",
        *stage.options,
        "--durations",
        "15",
        "-o",
        f"cache_dir={cache}",
        *(arguments or files_of(stage)),
    ]
    code = run_program([*stage.command, *options], LOGS / f"{name}.log", stage)
    seconds = time.monotonic() - began
    failed = failed_in(cache)
    return Outcome(
        name, counts(LOGS / f"{name}.log"), failed, code not in PYTEST_RAN or (code == 1 and not failed), seconds
    )


def files_of(stage: Stage) -> list[str]:
    """The files with tests of the stage. Without a stage that has collected all tests: none, which means all files.

    That stage is `unit`. Of the files that it leaves out, those are named that name the marks.
    """
    if not MARKS.exists() or not stage.wanted:
        return []
    marks_by_file = json.loads(MARKS.read_text())
    named = [file for file, tests in marks_by_file.items() if any(stage.has(frozenset(marks)) for marks in tests)]
    left_out = [REPOSITORY / "tests" / file for file in NEED_TORCH]
    return named + [
        str(path.relative_to(REPOSITORY))
        for path in left_out
        if all(f"pytest.mark.{mark}" in path.read_text() for mark in stage.wanted)
    ]


def failed_in(cache: Path) -> tuple[str, ...]:
    remembered = cache / "v" / "cache" / "lastfailed"
    return tuple(map(without_group, json.loads(remembered.read_text()))) if remembered.exists() else ()


def without_group(test: str) -> str:
    """The name by which pytest finds the test: xdist adds "@" and the name of its group."""
    return re.sub(r"@[\w.-]+$", "", test)


def run_program(command: Sequence[str], log: Path, stage: Stage | None = None) -> int:
    """Its output goes to `log`, and to the terminal unless it is a stage beside others."""
    beside = stage is not None and stage.beside
    with log.open("w", buffering=1) as file:
        program = subprocess.Popen(
            [*(LOWEST_PRIORITY if stage is not None and stage.gives_way else ()), *command],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=beside,
        )
        running.append(program)
        assert program.stdout is not None
        for line in program.stdout:
            if not beside:
                print(line, end="", flush=True)
            file.write(line)
        return program.wait()


def counts(log: Path) -> Counter[str]:
    """How many tests passed, failed and so on, by the last line of pytest's output."""
    lines = log.read_text().splitlines()
    found = re.findall(r"(\d+) (passed|failed|errors?|skipped|xfailed)", lines[-1]) if lines else []
    return Counter({"errors" if what == "error" else what: int(number) for number, what in found})


def run_again(outcome: Outcome, file: str, tests: Sequence[str]) -> set[str]:
    """Tests of one file, which may share what takes long to begin. Returns those that passed."""
    FLAKY.mkdir(parents=True, exist_ok=True)
    shutil.copy(LOGS / f"{outcome.stage}.log", FLAKY / f"{outcome.stage}.first.log")
    print(f"== once more, alone: {' '.join(tests)}", flush=True)
    name = re.sub(r"[^\w.-]+", "_", file)
    cache = LOGS / f"{name}.cache"
    shutil.rmtree(cache, ignore_errors=True)
    options = ["-m", STAGES[outcome.stage].expression, "-rA", "-o", f"cache_dir={cache}"]
    code = run_program([*PYTEST, *tests, *options], FLAKY / f"{name}.second.log")
    return set() if code not in {0, 1} else set(tests) - set(failed_in(cache))


def make_slurm_versions(versions: Sequence[str]) -> bool:
    """Waits where they are being made in the background already."""
    script = REPOSITORY / "tests" / "testbed" / "slurm_versions.sh"
    return not versions or subprocess.run([script, *versions], check=False).returncode == 0


def main() -> int:
    # Thousands of processes are started. Each would compile this project again, and pytest all of its tests.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    names = [name for name in sys.argv[1:] if name in STAGES]
    arguments = [word for word in sys.argv[1:] if word not in STAGES]
    shutil.rmtree(FLAKY, ignore_errors=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    MARKS.unlink(missing_ok=True)
    os.environ["UNDERSTUDY_MARKS"] = str(MARKS) if not arguments else ""
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor() as threads, ended_at_the_end():
        beside: dict[str, Future[Outcome]] = {}
        for name in names:
            stage = STAGES[name]
            outcomes += [finished(beside.pop(one)) for one in stage.waits_for if one in beside]
            if not make_slurm_versions(stage.slurm_versions):
                print("test: the other versions of Slurm could not be set up; stages are missing", file=sys.stderr)
                return 1
            if stage.beside:
                beside[name] = threads.submit(run_stage, name, arguments)
            else:
                outcomes.append(run_stage(name, arguments))
        outcomes += map(finished, beside.values())
    return report(outcomes)


@contextlib.contextmanager
def ended_at_the_end() -> Iterator[None]:
    """Ctrl-C reaches only this session, and SIGTERM only this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        for program in running:
            if program.poll() is None:
                program.terminate()
                with contextlib.suppress(ProcessLookupError):  # it leads no group
                    os.killpg(program.pid, signal.SIGTERM)


def finished(beside: Future[Outcome]) -> Outcome:
    """Waits for a stage beside others, and prints what the terminal has not seen of it."""
    outcome = beside.result()
    print(f"== {outcome.stage} has ended", (LOGS / f"{outcome.stage}.log").read_text(), sep="\n", flush=True)
    return outcome


def report(outcomes: Sequence[Outcome]) -> int:
    flaky: list[str] = []
    failed: list[str] = []
    for outcome in outcomes:
        if not STAGES[outcome.stage].depends_on_machine or len(outcome.failed) > RERUNS_MAX:
            failed += outcome.failed
            continue
        for file, tests in groupby(sorted(outcome.failed), lambda test: test.partition("::")[0]):
            again = list(tests)
            passed_now = run_again(outcome, file, again)
            flaky += [test for test in again if test in passed_now]
            failed += [test for test in again if test not in passed_now]
    broken = [outcome.stage for outcome in outcomes if outcome.broken]
    for outcome in outcomes:
        numbers = ", ".join(f"{number} {what}" for what, number in outcome.counts.items())
        print(f"== {outcome.stage}: {numbers or 'over'} in {outcome.seconds:.0f} s")
    for test in flaky:
        print(f"flaky: {test} failed, and passed when run again alone; both logs are in {FLAKY}")
    for test in failed:
        print(f"failed: {test}")
    for name in broken:
        print(f"failed: stage {name} itself; see {LOGS / name}.log")
    passed = sum(outcome.counts["passed"] for outcome in outcomes) + len(flaky)
    print(f"{passed} passed, {len(failed) + len(broken)} failed" + (f", {len(flaky)} flaky" if flaky else ""))
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
