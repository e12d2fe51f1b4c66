"""Fixtures that several rooms of tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pythons import HOOK_VERSIONS, missing
from tests.testbed.cluster import SlurmCluster
from tests.testbed.installation import NATIVE, Installation


class Clusters:
    """Real Slurm clusters of 8 nodes, one a version, started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, SlurmCluster] = {}
        self._stack = ExitStack()

    def get(self, installation: Installation) -> SlurmCluster:
        if installation.slurm not in self._running:
            # Not pytest's own temporary directory: its path is long for sockets, and closed to users whose jobs run.
            directory = Path(tempfile.mkdtemp(prefix="understudy-"))
            directory.chmod(0o755)
            self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
            prolog = directory / "prolog"
            prolog.write_text(f'#!/bin/sh\n[ ! -e "{directory}/bad-prolog.$SLURMD_NODENAME" ]\n')
            prolog.chmod(0o755)
            cluster = SlurmCluster(
                directory,
                # Quicker than Slurm's three seconds from a submission to its start: only the tests' patience is tuned.
                extra_lines=[
                    "SchedulerParameters=batch_sched_delay=0,sched_interval=1",
                    "RebootProgram=/bin/true",
                    f"Prolog={prolog}",
                ],
                slurm=installation,
                racks={"rack1": 4, "rack2": 4},
            )
            self._running[installation.slurm] = self._stack.enter_context(cluster)
        return self._running[installation.slurm]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def slurm_clusters() -> Iterator[Clusters]:
    """Tests that use it carry the mark `cluster` and leave each cluster as they found it."""
    clusters = Clusters()
    try:
        yield clusters
    finally:
        clusters.close()


@pytest.fixture(scope="session")
def slurm_cluster(slurm_clusters: Clusters) -> SlurmCluster:
    """The cluster of this machine's own Slurm."""
    return slurm_clusters.get(NATIVE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which versions of Python the hook was tried on, where that was tested, and which this machine lacks."""
    passed = terminalreporter.stats.get("passed", [])
    properties = [pair for report in passed for pair in getattr(report, "user_properties", ())]
    tried = [str(value) for name, value in properties if name == "hook on Python"]
    if tried:
        lacking = missing(HOOK_VERSIONS)
        tail = f"; not on this machine: {', '.join(lacking)}" if lacking else ""
        terminalreporter.write_line(f"the hook was tried on Python {', '.join(tried)}{tail}")
