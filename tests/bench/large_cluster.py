"""A real slurmctld that knows 12,500 nodes and 2,000 jobs. Few of the nodes have a slurmd: the rest is in the cloud."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.bench.slurm_text import GANG, JOBS, NODES
from tests.testbed.cluster import SlurmCluster

REAL_NODES = 4
LINES = (
    # Nodes of the cloud need no slurmd and are never pinged; PrivateData=cloud shows them although they are off.
    f"NodeName=c[1-{NODES - REAL_NODES}] CPUs=16 RealMemory=1024 Gres=gpu:8 State=CLOUD",
    "PrivateData=cloud",
    "ResumeProgram=/bin/true",
    "SuspendProgram=/bin/true",
    "SuspendTime=INFINITE",
)


@contextmanager
def large_cluster(jobs: int = JOBS) -> Iterator[SlurmCluster]:
    directory = Path(tempfile.mkdtemp(prefix="understudy-"))
    directory.chmod(0o755)
    try:
        with SlurmCluster(directory, nodes=REAL_NODES, extra_lines=LINES) as cluster:
            with ThreadPoolExecutor(max_workers=4) as pool:
                list(pool.map(lambda number: _submit(cluster, number), range(jobs)))
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _submit(cluster: SlurmCluster, number: int) -> int:
    return cluster.sbatch(
        "--hold",
        f"--nodes={GANG}",
        "--requeue",
        "--comment=team-a understudy",
        f"--job-name=gang-{number}",
        script="#!/bin/sh\nsleep 1000\n",
    )
