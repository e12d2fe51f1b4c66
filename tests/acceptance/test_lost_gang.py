"""On a real cluster: a gang that loses all its nodes at once, that waits for a licence after its requeue, and a spare
that it could not start on.
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


def recovered(site: Site, number: int) -> None:
    site.wait_for(
        lambda: [one["status"] for one in site.recoveries()] == ["succeeded"] * number,
        60,
        f"recovery {number} has succeeded",
    )


def test_a_gang_is_not_lost_whatever_it_loses(make_site: MakeSite) -> None:
    settings = {
        "guards": {"breaker_share_max": 1.0, "quarantined_share": 1.0, "quarantined_share_max": 1.0},
        "silence": {"dead_unconfirmed_seconds": 6.0},
        "recovery": {"step_timeout_seconds": STEP_SECONDS},
    }
    site = make_site(nodes=8, spares=3, settings=settings, slurm_conf_lines=["Licenses=solver:1"])
    halve_memory(site, "n6")
    gang.start_site(site)
    job = gang.submit(site, "--mem=800", "--licenses=solver:1", nodes=2)
    gang.wait_running(site, job)
    assert gang.nodes_of(site, job) == ["n1", "n2"]

    site.nodes["n2"].fail_gpu()
    gang.wait_running(site, job, restarts=1)
    recovered(site, 1)
    assert gang.nodes_of(site, job) == ["n1", "n7"], "n6 has too little memory for it"

    lost = gang.nodes_of(site, job)
    for name in lost:
        site.lose_node(name)
    gang.wait_running(site, job, restarts=2)
    recovered(site, 2)
    second = gang.nodes_of(site, job)
    assert set(second).isdisjoint(lost)
    assert "n6" not in second

    other = gang.submit(site, "--licenses=solver:1", nodes=1, comment="", user="games")
    site.cluster.run("scontrol", "update", f"JobId={other}", "Priority=4294901760")
    site.nodes[second[0]].fail_gpu()
    gang.wait_running(site, other)
    site.wait_for(lambda: gang.job_fields(site, job)["Reason"] == "Licenses", 30, "the gang waits for its licence")
    seats = gang.reservations(site)[f"understudy_seats_{job}"]
    site.cluster.wait_until(lambda: waited(site) > 2 * STEP_SECONDS, 60, "the step has taken longer than others may")
    assert gang.reservations(site)[f"understudy_seats_{job}"] == seats
    site.cluster.run("scancel", str(other))
    gang.wait_running(site, job, restarts=3)
    recovered(site, 3)
    assert gang.nodes_of(site, job) == seats

    site.cluster.run("scancel", str(job))
    free = sorted({*site.nodes} - {*lost, "n2", second[0], *gang.reservations(site).get("understudy_spares", [])})
    last = gang.submit(site, f"--nodelist={','.join(free)}", nodes=len(free), comment="")
    gang.wait_running(site, last)


def waited(site: Site) -> float:
    """Seconds for which the newest recovery has waited for the start of its job."""
    steps = site.get(f"/v1/recoveries/{site.recoveries()[-1]['id']}")["steps"]
    (start,) = (step for step in steps if step["name"] == "start_job")
    now = float(site.cluster.run("date", "+%s").stdout)
    return now - float(start["intended_at"] or now)
