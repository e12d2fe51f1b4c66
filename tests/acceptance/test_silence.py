"""Nodes that fall silent without being dead, and nodes that are dead although their kernel answers."""

from __future__ import annotations

import time

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.processes import read_process
from tests.testbed.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.machines]

BLIP_SECONDS = 8.0


def runs(site: Site, node: str, program: str) -> bool:
    found = (read_process(pid) for pid in site.cluster.node_pids(node))
    return program in {process.name for process in found if process}


def test_a_gap_of_eight_seconds_in_the_management_network_kills_nothing_and_a_node_that_stands_still_is_dead(
    make_site: MakeSite,
) -> None:
    """The job has neither hook nor launcher: nothing but time confirms that its node is dead. Here that is 14 s
    instead of the 120 s that are the default.
    """
    site = make_site(nodes=6, spares=1, settings={"silence": {"dead_unconfirmed_seconds": 14.0}})
    gang.start_site(site)
    job = gang.submit(site, nodes=3)
    gang.wait_running(site, job)
    site.wait_for(lambda: runs(site, "n2", "sleep"), 60, "its task runs on n2")

    site.cluster.unplug("n2", networks=["management"])
    time.sleep(BLIP_SECONDS)
    assert site.node("n2")["state"] == "unknown", site.items("/v1/decisions")
    site.cluster.plug_in("n2")
    site.wait_for(lambda: site.node("n2")["state"] == "in_service", 30, "n2 is heard again")
    fields = gang.job_fields(site, job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")
    assert site.node("n2")["slurm"]["flags"] == []
    assert site.recoveries() == []

    with site.cluster.frozen("n2"):
        gang.wait_running(site, job, restarts=1)
        assert gang.nodes_of(site, job) == ["n1", "n3", "n6"]
        # A round of the loop that carries out a swap shows its nodes when it is over.
        site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 30, "n2 is shown as quarantined")
    site.wait_for(lambda: not runs(site, "n2", "sleep"), 60, "the task of the job's first attempt has ended on n2")
