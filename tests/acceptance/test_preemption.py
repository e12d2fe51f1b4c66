"""No spare on a real cluster: Slurm preempts a job of a lower partition for the gang, and no other."""

from __future__ import annotations

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite

pytestmark = pytest.mark.cluster

LOWER_PARTITION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=ALL OverSubscribe=EXCLUSIVE PriorityTier=0 MaxTime=INFINITE State=UP",
)


def test_without_a_spare_the_gang_gets_the_node_of_a_job_that_slurm_preempts(make_site: MakeSite) -> None:
    settings = {"spares": {"no_spare": "preempt"}}
    site = make_site(nodes=4, spares=0, settings=settings, slurm_conf_lines=LOWER_PARTITION)
    gang.start_agents(site)
    site.start_control_plane()
    site.wait_for(lambda: gang.all_heard(site), 60, "all nodes are heard")
    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    low, equal = gang.submit(site, "--partition=low", nodes=1, comment=""), gang.submit(site, nodes=1, comment="")
    for other in (low, equal):
        gang.wait_running(site, other)
    failed, *healthy = gang.nodes_of(site, job)
    taken = gang.nodes_of(site, low)
    site.nodes[failed].fail_gpu()
    gang.wait_running(site, job, restarts=1)
    assert gang.nodes_of(site, job) == sorted([*healthy, *taken])
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the recovery has ended")
    assert gang.reservations(site) == {}
    assert (gang.state(site, low), gang.job_fields(site, low)["Restarts"]) == ("PENDING", "1")
    assert gang.state(site, equal) == "RUNNING"
    reasons = [one["reason"] for one in site.items("/v1/decisions")]
    assert any(f"there is no spare, and Slurm preempts job {low} (requeued) for it" in one for one in reasons)
