"""Fixtures that several rooms of tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.testbed.cluster import SlurmCluster


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A real Slurm cluster of 8 nodes; tests that use it carry the mark `cluster` and leave it as they found it."""
    # Not pytest's own temporary directory: its path is long for sockets, and closed to the users whose jobs run.
    directory = Path(tempfile.mkdtemp(prefix="understudy-"))
    directory.chmod(0o755)
    try:
        # Quicker than Slurm's three seconds from a submission to its start: only the tests' patience is tuned.
        prolog = directory / "prolog"
        prolog.write_text(f'#!/bin/sh\n[ ! -e "{directory}/bad-prolog.$SLURMD_NODENAME" ]\n')
        prolog.chmod(0o755)
        lines = ["SchedulerParameters=batch_sched_delay=0", f"Prolog={prolog}"]
        with SlurmCluster(directory, extra_lines=lines) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)
