"""A real slurmctld that knows 12,500 nodes and 2,000 jobs. Few of the nodes have a slurmd: the rest is in the cloud."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.slurm_text import GANG, JOBS, NODES
from tests.testbed.cluster import ClusterError, SlurmCluster

REAL_NODES = 4
LINES = (
    "NodeName=c[1-{}] CPUs=16 RealMemory=1024 Gres=gpu:8 State=CLOUD",
    # Nodes of the cloud need no slurmd and are never pinged; this shows them although they are off.
    "PrivateData=cloud",
    "ResumeProgram=/bin/true",
    "SuspendProgram=/bin/true",
    "SuspendTime=INFINITE",
    f"MaxArraySize={JOBS + 1}",
)


@contextmanager
def large_cluster(jobs: int = JOBS, nodes: int = NODES) -> Iterator[SlurmCluster]:
    directory = Path(tempfile.mkdtemp(prefix="understudy-"))
    directory.chmod(0o755)
    try:
        lines = (LINES[0].format(nodes - REAL_NODES), *LINES[1:])
        with SlurmCluster(directory, nodes=REAL_NODES, extra_lines=lines) as cluster:
            _submit(cluster, jobs)
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _submit(cluster: SlurmCluster, jobs: int) -> None:
    """An array, whose tasks get records of their own with a name each: two commands, not thousands."""
    array = cluster.sbatch(
        "--hold",
        f"--array=1-{jobs}",
        f"--nodes={GANG}",
        "--requeue",
        "--comment=team-a understudy",
        script="#!/bin/sh\nsleep 1000\n",
    )
    names = "".join(f"update JobId={array}_{task} JobName=gang-{task}\n" for task in range(1, jobs + 1))
    done = cluster.run("scontrol", text=names, timeout_seconds=120)
    if done.returncode != 0 or "error" in done.stderr:
        raise ClusterError(f"the tasks of array job {array} got no names: {done.stderr.strip()}")
