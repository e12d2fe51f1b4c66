"""This process as the only rank of a job, with an agent and a stand-in for the control plane."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from understudy import Monitor


@contextmanager
def monitored() -> Iterator[tuple[FakeControlPlane, Monitor]]:
    os.environ.update({"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"})
    with tempfile.TemporaryDirectory() as folder, FakeControlPlane() as plane:
        config = agent_config(Path(folder), plane.url)
        os.environ["UNDERSTUDY_SOCKET"] = str(config.socket)
        with running_agent(config):
            monitor = Monitor()
            yield plane, monitor
            monitor.close()
