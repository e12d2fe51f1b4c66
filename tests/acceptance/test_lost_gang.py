"""A gang on a real cluster loses all its nodes at once, waits for a licence after its requeue, or cannot start on a
spare.
"""

from __future__ import annotations

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.site import Site

pytestmark = pytest.mark.cluster

STEP_SECONDS = 5.0
"""After this a step has failed that waits for nothing that passes."""


def halve_memory(site: Site, node: str) -> None:
    conf = site.cluster.layout.slurm_conf
    lines = conf.read_text().split("\n")
    whole = f"NodeName={node} "
    conf.write_text("\n".join(one.replace("=1024", "=512") if one.startswith(whole) else one for one in lines))
    site.cluster.stop_controller()
    site.cluster.start_controller()
    site.cluster.wait_until_idle()


def recovered(site: Site) -> None:
    """The newest: the one before it is superseded where its other nodes are found dead a moment later."""
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the recovery has succeeded")


def test_a_gang_is_not_lost_whatever_it_loses(make_site: MakeSite) -> None:
    settings = {
        "guards": {"breaker_share_max": 1.0, "quarantined_share": 1.0, "quarantined_share_max": 1.0},
        "silence": {"dead_unconfirmed_seconds": 6.0},
        "recovery": {"step_timeout_seconds": STEP_SECONDS},
    }
    site = make_site(nodes=8, spares=3, settings=settings, slurm_conf_lines=["Licenses=solver:1"])
    halve_memory(site, "n6")
    gang.start_site(site)
    assert "GresUsed=gpu:0" in nodes_in_detail(site)
    job = gang.submit(site, "--mem=800", "--licenses=solver:1", nodes=2)
    gang.wait_running(site, job)
    assert gang.nodes_of(site, job) == ["n1", "n2"]

    other = gang.submit(site, "--licenses=solver:1", nodes=1, comment="", user="games")
    site.cluster.run("scontrol", "update", f"JobId={other}", "Priority=4294901760")
    site.nodes["n2"].fail_gpu()
    gang.wait_running(site, other)
    site.wait_for(lambda: gang.job_fields(site, job)["Reason"] == "Licenses", 30, "the gang waits for its licence")
    site.wait_for(lambda: waited(site) > 2 * STEP_SECONDS, 60, "the step has taken longer than others may")
    assert gang.reservations(site)[f"understudy_seats_{job}"] == ["n1", "n7"], "n6 has too little memory for it"
    site.cluster.run("scancel", str(other))
    gang.wait_running(site, job, restarts=1)
    recovered(site)
    assert gang.nodes_of(site, job) == ["n1", "n7"]

    for name in ("n1", "n7"):
        site.lose_node(name)
    gang.wait_running(site, job, restarts=2)
    recovered(site)
    assert {"n1", "n2", "n6", "n7"}.isdisjoint(gang.nodes_of(site, job))
    site.cluster.run("scancel", str(job))
    site.wait_for(lambda: "GresUsed=gpu:8" not in nodes_in_detail(site), 30, "slurmctld has freed all GPUs")


def nodes_in_detail(site: Site) -> str:
    return site.cluster.run("scontrol", "--details", "show", "nodes").stdout


def waited(site: Site) -> float:
    """Seconds for which the newest recovery has waited for the start of its job."""
    steps = site.get(f"/v1/recoveries/{site.recoveries()[-1]['id']}")["steps"]
    (start,) = (step for step in steps if step["name"] == "start_job")
    now = float(site.cluster.run("date", "+%s").stdout)
    return now - float(start["intended_at"] or now)
