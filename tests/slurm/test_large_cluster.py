"""A real slurmctld with 12,500 nodes and 2,000 jobs is read in a fraction of a poll interval."""

from __future__ import annotations

import time

import pytest

from tests.bench.large_cluster import large_cluster
from tests.bench.slurm_text import JOBS, NODES
from tests.stopwatch import best_seconds
from understudy_controlplane.config import Slurm
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.protocol import read_view


@pytest.mark.cluster
@pytest.mark.timed
def test_a_large_cluster_is_read_whole_within_a_fraction_of_a_poll_interval() -> None:
    with large_cluster() as cluster:
        slurm = CommandLineGateway(environment=cluster.environment)
        view = read_view(slurm, time.time())
        assert (len(view.nodes), len(view.jobs)) == (NODES, JOBS)
        assert best_seconds(lambda: read_view(slurm, time.time()), 5) < Slurm().poll_interval_seconds / 2
