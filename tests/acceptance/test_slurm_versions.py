"""One whole recovery on every version of Slurm, through every gateway: same gang, same fault, same end.

A dead node falls silent: its connections are not reset, where this machine allows namespaces.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from tests.acceptance import gang, ranks
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import LauncherJob, swaps, wait_succeeded
from tests.testbed.installation import DEBIAN_13, DEBIAN_14, NATIVE, Installation
from tests.testbed.site import RESEARCHER
from understudy_controlplane.config import Gateway

pytestmark = pytest.mark.cluster

STEPS = 250
NODES = 3


EXPEDITED = replace(DEBIAN_14, settings=("SlurmctldParameters=enable_expedited_requeue",))
"""Slurm's own way to hold a gang's seats, for jobs that ask for it."""


@pytest.mark.parametrize(
    ("slurm", "gateway", "requeue"),
    [
        pytest.param(NATIVE, Gateway.AUTO, "--requeue", id="22.05-auto"),
        pytest.param(DEBIAN_13, Gateway.AUTO, "--requeue", id="24.11-auto"),
        pytest.param(DEBIAN_14, Gateway.CLI, "--requeue", id="26.05-cli"),
        pytest.param(DEBIAN_14, Gateway.PYSLURM, "--requeue", id="26.05-pyslurm"),
        pytest.param(EXPEDITED, Gateway.CLI, "--requeue=expedite", id="26.05-expedite"),
    ],
)
@pytest.mark.parametrize("fault", ["xid", "dead_node"])
def test_a_gang_is_recovered_and_ends_as_if_nothing_had_happened(
    make_site: MakeSite, slurm: Installation, gateway: Gateway, requeue: str, fault: str
) -> None:
    site = make_site(nodes=6, spares=1, slurm=slurm, slurm_settings={"gateway": gateway.value})
    gang.start_site(site)
    work = site.cluster.user_directory(RESEARCHER) / "work"
    work.mkdir()
    shutil.chown(work, RESEARCHER)
    shutil.copy(ranks.__file__, site.code / "ranks.py")
    script = site.code / "gang.sh"
    script.write_text(
        "#!/bin/bash\n"
        f'srun --kill-on-bad-exit=1 python3 "{site.code}/ranks.py" "{work}" {STEPS} && exit 0\n'
        "sleep 60\n"
        "exit 1\n"
    )
    options = [f"--nodes={NODES}", "--ntasks-per-node=1", "--gres=gpu:8", requeue, "--comment=understudy"]
    job = site.submit(script, options=options)
    gang.wait_running(site, job)
    site.wait_for((work / "checkpoint-30" / "rank-0").exists, 60, "three checkpoints are written")
    first_nodes = gang.nodes_of(site, job)
    hungry = gang.submit(site, nodes=2, comment="none", user="games")

    bad = first_nodes[1]
    fault_at = site.nodes[bad].fail_gpu() if fault == "xid" else site.lose_node(bad)
    site.wait_for(lambda: site.recoveries() and site.recoveries()[0]["status"] != "running", 60, "the gang is back")

    (recovery,) = site.recoveries()
    assert recovery["status"] == "succeeded", recovery
    assert (recovery["nodes"], recovery["spares"]) == ([bad], ["n6"])
    fields = gang.job_fields(site, job)
    assert fields["Restarts"] == "1"
    assert gang.nodes_of(site, job) == sorted({*first_nodes, "n6"} - {bad})
    assert "n6" not in gang.nodes_of(site, hungry), "seats and spares are for the gang"
    assert site.node(bad)["state"] == "quarantined"
    assert site.node(bad)["slurm"]["reason"].startswith("understudy:")
    assert "understudy_seats_1" not in gang.reservations(site)
    print(
        f"{slurm.slurm} {gateway.value} {requeue} {fault}: {recovery['phases_ms']} ms after the fault at {fault_at:.0f}"
    )

    site.wait_for(lambda: gang.state(site, job) == "COMPLETED", 60, "the gang has finished")
    for rank in range(NODES):
        assert int((work / f"weight-{rank}").read_text()) == ranks.weight_after(STEPS)
        attempts = [json.loads(line) for line in (work / f"attempts-{rank}").read_text().splitlines()]
        assert [one["attempt"] for one in attempts] == ["0", "1"]
        assert attempts[1]["from"] >= 30


@pytest.mark.parametrize("slurm", [pytest.param(DEBIAN_13, id="24.11"), pytest.param(DEBIAN_14, id="26.05")])
def test_a_gang_with_spares_of_its_own_keeps_its_allocation(make_site: MakeSite, slurm: Installation) -> None:
    """Launcher, agents and control plane together, after an Xid and then a dead node."""
    site = make_site(nodes=6, spares=1, slurm=slurm)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=2, steps=1000)
    assert job.wait_for_launch(0, 0) == ["n1", "n2"]
    job.wait_for_checkpoint(0, 0)
    site.nodes["n2"].fail_gpu()
    assert job.wait_for_launch(0, 1) == ["n1", "n3"]
    wait_succeeded(site, 1)
    assert site.node("n2")["slurm"]["reason"].startswith("understudy: xid.79")
    job.wait_for_checkpoint(0, 1)
    site.lose_node("n3")
    assert job.wait_for_launch(0, 2) == ["n1", "n4"]
    site.wait_for(lambda: site.node("n3")["state"] == "quarantined", 60, "the dead node is quarantined")
    assert all(one["from"] > 0 for one in job.starts(0, 2))
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "0"
    assert len(site.recoveries()) == 0
    print(f"{slurm.slurm}: {[one['phases_ms'] for one in swaps(site)]}")
