"""Hardware that wears out or hangs, on a real cluster with the fake driver."""

from __future__ import annotations

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.fake_nvml import EVENT_MEMORY_STORM
from tests.testbed.site import FABRIC_PORTS, Site

pytestmark = pytest.mark.cluster


def test_a_pending_remap_lets_its_job_end_and_a_hung_driver_is_suspected(make_site: MakeSite) -> None:
    site = make_site(nodes=4, spares=0)
    gang.start_site(site)
    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    site.wait_for(lambda: len(site.node("n1")["ports"]) == FABRIC_PORTS, 60, "the fabric's ports are seen")
    for name in ("n1", "n3"):
        site.nodes[name].gpus.change(5, remapped_pending=1)
        site.nodes[name].gpus.raise_event(5, EVENT_MEMORY_STORM, 0)  # upon which everything is read at once
    site.nodes["n4"].gpus.hang(0)

    site.wait_for(lambda: "DRAIN" in site.node("n3")["slurm"]["flags"], 60, "idle n3 is drained")
    assert "memory.row_remap_pending" in site.node("n3")["slurm"]["reason"]
    site.wait_for(lambda: "DRAIN" in site.node("n1")["slurm"]["flags"], 60, "n1 takes no other job")
    assert _decided(site, "n1", 130)

    site.wait_for(lambda: site.node("n4")["state"] == "suspect", 60, "n4 is suspect for its driver")
    assert site.node("n4")["slurm"]["flags"] == []
    assert site.node("n4")["nvml_silent_seconds"] >= 30
    site.nodes["n4"].gpus.heal(0)
    site.wait_for(lambda: site.node("n4")["state"] == "in_service", 60, "n4 is well again")

    assert gang.state(site, job) == "RUNNING"
    assert site.cluster.run("squeue", "-h", "-j", str(job), "-o", "%N").stdout.strip() == "n[1-2]"


def _decided(site: Site, node: str, row: int) -> bool:
    return any(one["subject"] == node and one["table_row"] == row for one in site.items("/v1/decisions"))
