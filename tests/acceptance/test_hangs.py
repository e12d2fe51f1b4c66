"""A gang that hangs without a launcher and without marked collectives, on a real cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import OTHER_PYTHON
from tests.testbed.site import RESEARCHER

pytestmark = [pytest.mark.cluster, pytest.mark.machines, pytest.mark.long]

TOGETHER = """
import os, sys, time
from pathlib import Path
from understudy import Monitor

rank, home = os.environ["SLURM_PROCID"], Path(sys.argv[1]) / os.environ.get("SLURM_RESTART_COUNT", "0")
home.mkdir(exist_ok=True)
monitor, number = Monitor(), 0
(home / f"pid-{rank}").write_text(str(os.getpid()))
while True:
    with monitor.step(number):
        number += 1
        (home / f"new-{rank}").write_text(str(number))
        (home / f"new-{rank}").rename(home / f"step-{rank}")
        while min(int((home / f"step-{one}").read_text() if (home / f"step-{one}").exists() else 0)
                  for one in range(int(os.environ["SLURM_NTASKS"]))) < number:
            time.sleep(0.05)
"""
"""Ranks that wait for each other in each step."""


def test_the_node_of_a_process_that_was_stopped_gives_up_its_seat(make_site: MakeSite) -> None:
    settings = {"hang": {"seconds_min": 5, "first_step_seconds": 10}}
    site = make_site(nodes=6, spares=2, settings=settings)
    gang.start_site(site)
    home: Path = site.cluster.user_directory(RESEARCHER)
    (home / "together.py").write_text(TOGETHER)
    (home / "job.sh").write_text(f"#!/bin/bash\nsrun {OTHER_PYTHON} {home}/together.py {home}\n")
    job = site.submit(home / "job.sh", options=["--nodes=3", "--gres=gpu:8", "--requeue", "--comment=understudy"])
    gang.wait_running(site, job)
    before = gang.nodes_of(site, job)
    site.wait_for(
        lambda: (home / "0" / "step-1").exists() and int((home / "0" / "step-1").read_text()) > 20, 60, "steps"
    )
    os.kill(int((home / "0" / "pid-1").read_text()), signal.SIGSTOP)
    gang.wait_running(site, job, restarts=1)
    after = gang.nodes_of(site, job)
    assert before[1] not in after and {before[0], before[2]} < {*after}
    assert site.node(before[1])["state"] == "suspect"
    rows = {one["table_row"]: one for one in site.items("/v1/decisions")}
    assert {380, 100} <= rows.keys()
    assert "rank 1: its process is stopped (SIGSTOP)" in rows[100]["reason"]
