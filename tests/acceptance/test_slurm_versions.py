"""Whole recoveries on every version of Slurm, through every gateway: same gang, same faults, same end.

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

STEPS = 400
NODES = 3

# The pool's spare is n6, so that a job of four nodes gets n1 to n4.
TWO_RACKS_ON_TWO_RAILS = {
    "leaf1a": ("n1", "n2", "n4", "n6"),
    "leaf1b": ("n1", "n2", "n4", "n6"),
    "leaf2a": ("n3", "n5"),
    "leaf2b": ("n3", "n5"),
}


EXPEDITED = replace(DEBIAN_14, settings=("SlurmctldParameters=enable_expedited_requeue",))
"""Slurm's own way to hold a gang's seats, for jobs that ask for it."""


@pytest.mark.parametrize(
    ("slurm", "gateway", "requeue"),
    [
        pytest.param(NATIVE, Gateway.AUTO, "--requeue", id="22.05-auto"),
        pytest.param(DEBIAN_13, Gateway.AUTO, "--requeue", id="24.11-auto", marks=pytest.mark.long),
        pytest.param(DEBIAN_14, Gateway.CLI, "--requeue", id="26.05-cli", marks=pytest.mark.long),
        pytest.param(DEBIAN_14, Gateway.PYSLURM, "--requeue", id="26.05-pyslurm", marks=pytest.mark.long),
        pytest.param(EXPEDITED, Gateway.CLI, "--requeue=expedite", id="26.05-expedite", marks=pytest.mark.long),
    ],
)
def test_a_gang_is_recovered_twice_and_ends_as_if_nothing_had_happened(
    make_site: MakeSite, slurm: Installation, gateway: Gateway, requeue: str
) -> None:
    """A GPU falls off the bus, then a node loses its power."""
    site = make_site(nodes=7, spares=2, slurm=slurm, slurm_settings={"gateway": gateway.value})
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
    hungry = gang.submit(site, nodes=2, comment="none", user="games")
    spares = {"n6", "n7"}
    saved = 0
    for number, fault in enumerate((lambda node: site.nodes[node].fail_gpu(), site.lose_node)):
        # Two new checkpoints: the gang has something to go on from, and something to lose.
        saved += 20
        site.wait_for((work / f"checkpoint-{saved}" / "rank-0").exists, 60, f"checkpoint {saved} is written")
        before = gang.nodes_of(site, job)
        bad = before[1]
        fault(bad)

        def over(swaps: int = number + 1) -> bool:
            found = site.recoveries()
            return len(found) == swaps and found[-1]["status"] != "running"

        site.wait_for(over, 60, f"the gang is back after {bad} failed")
        recovery = site.recoveries()[-1]
        assert recovery["status"] == "succeeded", recovery
        assert recovery["nodes"] == [bad]
        (spare,) = recovery["spares"]
        assert spare in spares, "the pool's"
        spares.discard(spare)
        assert gang.job_fields(site, job)["Restarts"] == str(number + 1)
        assert gang.nodes_of(site, job) == sorted({*before, spare} - {bad})
        assert not {"n6", "n7"} & set(gang.nodes_of(site, hungry)), "seats and spares are for the gang"
        assert site.node(bad)["state"] == "quarantined"
        assert site.node(bad)["slurm"]["reason"].startswith("understudy:")
        assert not [name for name in gang.reservations(site) if name.startswith("understudy_seats_")]
        saved = max(int(path.name.partition("-")[2]) for path in work.glob("checkpoint-*"))
        print(f"{slurm.slurm} {gateway.value} {requeue} {bad}: {recovery['phases_ms']} ms after the fault")

    site.wait_for(lambda: gang.state(site, job) == "COMPLETED", 60, "the gang has finished")
    for rank in range(NODES):
        assert int((work / f"weight-{rank}").read_text()) == ranks.weight_after(STEPS)
        attempts = [json.loads(line) for line in (work / f"attempts-{rank}").read_text().splitlines()]
        assert [one["attempt"] for one in attempts] == ["0", "1", "2"]
        assert attempts[2]["from"] > attempts[1]["from"] > 0


@pytest.mark.long
@pytest.mark.parametrize("slurm", [pytest.param(DEBIAN_13, id="24.11"), pytest.param(DEBIAN_14, id="26.05")])
def test_a_gang_with_spares_of_its_own_keeps_its_allocation(make_site: MakeSite, slurm: Installation) -> None:
    """Launcher, agents and control plane together, after an Xid and then a dead node. Of its spares, n4 is in the rack
    of the node that fails, and comes before n3.
    """
    site = make_site(nodes=6, spares=1, slurm=slurm, leaf_switches=TWO_RACKS_ON_TWO_RAILS)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=2)
    assert job.wait_for_launch(0, 0) == ["n1", "n2"]
    job.wait_for_checkpoint(0, 0)
    site.nodes["n2"].fail_gpu()
    assert job.wait_for_launch(0, 1) == ["n1", "n4"]
    wait_succeeded(site, 1)
    assert site.node("n2")["slurm"]["reason"].startswith("understudy: xid.79")
    job.wait_for_checkpoint(0, 1)
    site.lose_node("n4")
    assert job.wait_for_launch(0, 2) == ["n1", "n3"]
    site.wait_for(lambda: site.node("n4")["state"] == "quarantined", 60, "the dead node is quarantined")
    assert all(one["from"] > 0 for one in job.starts(0, 2))
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "0"
    assert len(site.recoveries()) == 0
    print(f"{slurm.slurm}: {[one['phases_ms'] for one in swaps(site)]}")
