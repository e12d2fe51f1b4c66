"""What it is worth that a spare has read a program's files.

A copy of PyTorch, below build/bench, is imported by a new process with none of its files in the page cache, and with
those that the hook named read before. It needs some gigabytes there.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import PYTHON_PATH
from tests.bench.result import BENCH_DIRECTORY, Result, Size, result
from understudy_agent.files.carry_out import carry_out

RUNS = 3
BYTES_PER_SECOND = 500e6
PROGRAM = "print(open('/proc/thread-self/schedstat').read())\n"
NAMES = "from understudy.program_files import program_files\nprint(program_files())\n"


def measure(size: Size) -> list[Result]:
    imported = size.of("torch", "yaml")
    BENCH_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BENCH_DIRECTORY, prefix="understudy-bench-") as home:
        packages = Path(home)
        spec = importlib.util.find_spec(imported)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).parents[1]
        for one in size.of([*source.iterdir()], [source / imported]):
            if one.is_dir():
                shutil.copytree(one, packages / one.name, symlinks=True)
            elif one.suffix in (".py", ".so"):
                shutil.copy(one, packages / one.name)
        start(packages, imported)  # compiles what is not compiled
        packed = run(packages, f"import {imported}\n{NAMES}").strip()
        cold, warm, reading = [], [], []
        for _ in range(size.of(RUNS, 1)):
            evict(packages)
            cold.append(start(packages, imported))
            evict(packages)
            began = time.monotonic()
            task = {"type": "warm", "program": packed, "bytes_max": 8 << 30, "bytes_per_second": BYTES_PER_SECOND}
            done = carry_out(task)
            reading.append(time.monotonic() - began)
            warm.append(start(packages, imported))
            print(f"import {imported}: cold {cold[-1]}, read before {warm[-1]}; {done['why']}", flush=True)
    return [
        *(
            result(
                name, unit, [one[place] for one in warm], {"cold": [one[place] for one in cold]}, more_is_better=False
            )
            for place, (name, unit) in enumerate(
                (("start_seconds", "s"), ("waiting_for_files_seconds", "s"), ("read_mebibytes", "MiB"))
            )
        ),
        result("reading_seconds", "s", reading, {}, more_is_better=False),
    ]


def evict(folder: Path) -> None:
    """Evicts files that no process has mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(packages: Path, imported: str) -> tuple[float, float, float]:
    """Seconds of the start; those in which it neither computes nor waits for a processor; MiB from disks."""
    read = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    began = time.monotonic()
    computed, waited, _ = map(int, run(packages, f"import {imported}\n{PROGRAM}").split())
    seconds = time.monotonic() - began
    read = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - read
    return round(seconds, 2), round(max(0.0, seconds - (computed + waited) / 1e9), 2), round(read / 2048, 1)


def run(packages: Path, program: str) -> str:
    path = f"{packages}:{PYTHON_PATH}"
    command = [sys.executable, "-S", "-c", program]  # without site-packages: all is imported from the copy
    done = subprocess.run(command, env={"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
