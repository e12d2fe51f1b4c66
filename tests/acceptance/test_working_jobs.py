"""A job that works is not ended for what ordinary programs and networks do: on a real cluster."""

from __future__ import annotations

import time

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import OTHER_PYTHON
from tests.acceptance.serve_without_changes import FILE, UNWILLING
from tests.testbed.site import RESEARCHER, Site

pytestmark = [pytest.mark.cluster, pytest.mark.machines]

HANGS_SECONDS = 12
SLURMD_TIMEOUT = 20
DEAD_SECONDS = SLURMD_TIMEOUT - 10
"""Seconds of silence of agent and slurmd, if Slurm agrees: ten before Slurm's own time-out."""

EPOCHS = """
import itertools, os, sys, time
from understudy import Monitor

monitor, home = Monitor(), sys.argv[1]
for number in itertools.count():
    while os.path.exists(f"{home}/stands"):
        time.sleep(0.05)
    with monitor.step(number % 20), monitor.collective("all_reduce"):
        time.sleep(0.1)
    with open(f"{home}/epoch-{os.environ['SLURM_PROCID']}", "w") as file:
        file.write(str(number // 20))
"""
"""Each rank counts its steps within an epoch, of two seconds."""


def test_epochs_and_networks_of_the_control_plane_end_no_job(make_site: MakeSite) -> None:
    """Steps, in turn: a gang whose step numbers fall every two seconds; nodes that the control plane alone does not
    reach, of a job with neither hook nor launcher; and a node that counted as dead, and answers again while its gang
    trains on.
    """
    settings = {"silence": {}, "hang": {"seconds_min": HANGS_SECONDS, "first_step_seconds": HANGS_SECONDS}}
    site = make_site(nodes=7, spares=2, settings=settings, slurm_conf_lines=[f"SlurmdTimeout={SLURMD_TIMEOUT}"])
    gang.start_site(site, UNWILLING)
    home = site.cluster.user_directory(RESEARCHER)
    (home / "epochs.py").write_text(EPOCHS)
    (home / "job.sh").write_text(f"#!/bin/bash\nsrun {OTHER_PYTHON} {home}/epochs.py {home}\n")
    trains = site.submit(home / "job.sh", options=["--nodes=3", "--gres=gpu:8", "--requeue", "--comment=understudy"])
    gang.wait_running(site, trains)
    sleeps = gang.submit(site, nodes=2)
    gang.wait_running(site, sleeps)
    assert [gang.nodes_of(site, job) for job in (trains, sleeps)] == [["n1", "n2", "n3"], ["n4", "n5"]]
    site.wait_for((home / "epoch-0").exists, 60, "the gang trains")

    with site.cluster.cut_off("n4"), site.cluster.cut_off("n5"):
        site.wait_for(
            lambda: min(silent_for(site, name) for name in ("n4", "n5")) > DEAD_SECONDS + 4, 60, "they are silent"
        )
        assert {site.node(name)["state"] for name in ("n4", "n5")} == {"unknown"}
    site.wait_for(lambda: int((home / "epoch-0").read_text() or 0) >= 9, 60, "the gang is in its tenth epoch")
    assert_nothing_done(site, trains, sleeps)

    (site.directory / FILE).write_text("create_reservation")
    with site.cluster.cut_off("n2"):
        (home / "stands").touch()
        site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 60, "n2 counts as dead")
        site.wait_for(site.recoveries, 60, "the gang is to be moved")
        (home / "stands").unlink()
    site.wait_for(lambda: silent_for(site, "n2") < 1.0, 60, "n2 answers again")
    (site.directory / FILE).unlink()
    site.wait_for(lambda: site.recoveries()[-1]["status"] not in ("planned", "running"), 60, "the recovery has ended")
    assert [one["status"] for one in site.recoveries()] == ["overtaken"], site.recoveries()
    for job in (trains, sleeps):
        fields = gang.job_fields(site, job)
        assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")


def silent_for(site: Site, node: str) -> float:
    return time.time() - float(site.node(node)["heard_at"])


def assert_nothing_done(site: Site, *jobs: int) -> None:
    for job in jobs:
        fields = gang.job_fields(site, job)
        assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0"), site.items("/v1/decisions")
    assert site.recoveries() == []
