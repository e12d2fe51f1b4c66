"""What the driver writes, from a node's kernel log to Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.site import RESEARCHER, Site

pytestmark = pytest.mark.cluster

GPU = "NVRM: Xid (PCI:0000:02:00)"
FORGED = [
    "NVRM: [358]: segfault at 0 ip 0 sp 0 error 4 in fallen off the bus and is not responding[1000+1000]",
    "nvidia-uvm: [359]: segfault at 0 ip 0 sp 0 error 4 in global fatal error[1000+1000]",
    f"a\\x0a{GPU[:12]}[360]: segfault at 0 ip 0 sp 0 error 4 in \\x0a{GPU}: 79, GPU has fallen off the bus.[1000+1000]",
]
"""What the kernel logs of programs with such names that crash."""


def decisions(site: Site, node: str) -> list[dict[str, Any]]:
    return [one for one in site.items("/v1/decisions") if one["subject"] == node]


def test_a_fault_that_can_wait_drains_the_node_and_the_gang_goes_on_to_its_end(make_site: MakeSite) -> None:
    site = make_site(nodes=4, spares=1)
    gang.start_site(site)
    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    site.wait_for(lambda: site.node("n2")["jobs"] == [job], 60, "the control plane has seen it too")
    for line in FORGED:
        site.nodes["n2"].log_kernel_message(line)
    site.nodes["n2"].log_kernel_message(f"{GPU}: 94, pid=7, name=python, Contained: SM (0x1). RST: No, D-RST: No")
    site.wait_for(lambda: [one for one in decisions(site, "n2") if one["table_row"] == 60], 60, "row 60 is decided")
    assert site.node("n2")["state"] == "in_service"
    assert {one["table_row"] for one in decisions(site, "n2")} == {60}, "no name of a process decides anything"
    line = f"{GPU}: 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."
    site.nodes["n2"].log_kernel_message(line)
    site.wait_for(lambda: "DRAIN" in site.node("n2")["slurm"]["flags"], 60, "n2 is drained")
    (drain,) = [one for one in decisions(site, "n2") if one["table_row"] == 130]
    evidence = drain["evidence"]
    assert (drain["action"], evidence["repair"], evidence["kernel_log"]) == ("drain", "reset_gpu", line)
    assert evidence["jobs"] == [f"{job} of {RESEARCHER}"]
    fields = gang.job_fields(site, job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")
    assert gang.nodes_of(site, job) == ["n1", "n2"]
    assert site.node("n2")["slurm"]["reason"].startswith("understudy: xid.63")
    site.cluster.run("scancel", str(job))
    site.wait_for(lambda: site.node("n2")["slurm"]["state"] == "IDLE", 60, "n2 is empty")
    assert "DRAIN" in site.node("n2")["slurm"]["flags"]
