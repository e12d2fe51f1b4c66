"""How long a control plane starts that knows 50,000 jobs: `start_seconds_50000_jobs`, processor time until the end of
its first tick, on SQLite. Slurm shows all of them and has changed none; what its commands cost is that of
`tests.bench.slurm_read`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.processor import seconds_of
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import NODES
from tests.bench.tick import Fleet, LargeSlurm
from tests.stopwatch import reference
from understudy_controlplane.serve import collect_rarely

JOBS, ROUNDS = 50_000, 3


def measure(size: Size) -> list[Result]:
    collect_rarely()
    nodes, jobs = size.of((NODES, JOBS), (200, 500))
    taken, beside = list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as directory:
        slurm = LargeSlurm(nodes, jobs)

        def start() -> None:
            fleet = Fleet(Path(directory), nodes, slurm)
            fleet.tick()
            fleet.control_plane.close()

        start()
        for _ in range(size.of(ROUNDS, 1)):
            beside.append(seconds_of(reference))
            taken.append(seconds_of(start))
    return [result("start_seconds_50000_jobs", "s", taken, {"fixed_work": beside}, more_is_better=False)]
