"""Power saving of Slurm on a real cluster: a spare that is switched off is a spare, and the pool keeps its size."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.site import Site

pytestmark = pytest.mark.cluster

POWER_SAVING = (
    "SuspendProgram=/bin/true",
    "ResumeProgram=/bin/true",
    "SuspendTime=600",
    "SuspendTimeout=5",
    "ResumeTimeout=120",
    "SuspendExcNodes=n1,n2",
    "SuspendRate=0",
    "ResumeRate=0",
)


def suspend_soon(site: Site) -> None:
    """Once the pool is made: on a slow machine its spares would be switched off before that, and others join it."""
    conf = site.cluster.layout.slurm_conf
    conf.write_text(conf.read_text().replace("SuspendTime=600", "SuspendTime=15"))
    site.cluster.run("scontrol", "reconfigure")


def flags(site: Site, name: str) -> list[str]:
    found: list[str] = site.node(name)["slurm"]["flags"]
    return found


def test_spares_that_slurm_switches_off_are_not_replaced_and_what_is_too_many_is_given_back(
    make_site: MakeSite,
) -> None:
    """n1 and n2 are idle and awake: they joined the pool, one for each spare that was switched off."""
    site = make_site(nodes=4, spares=2, slurm_conf_lines=POWER_SAVING)
    gang.start_site(site)
    spares = ["n3", "n4"]
    suspend_soon(site)
    site.wait_for(lambda: all("POWERED_DOWN" in flags(site, name) for name in spares), 90, "spares are switched off")
    for name in spares:
        site.kill_node(name)
    at = time.time()
    site.wait_for(lambda: time.time() - at > 15, 60, "their agents are silent for long enough to be missed")
    assert site.spares_held() == spares
    assert {site.node(name)["state"] for name in spares} <= {"in_service", "unknown"}, "neither is dead"

    site.cluster.run("scontrol", "update", "nodename=n4", "state=power_up")
    # Slurm takes a boot before that for an unexpected one, and sets the node DOWN.
    site.wait_for(lambda: "POWERING_UP" in flags(site, "n4"), 60, "Slurm switches n4 on")
    site.cluster.start_node("n4", rebooted=True)
    site.start_agent("n4")
    site.wait_for(lambda: "POWERING_UP" not in flags(site, "n4"), 60, "n4 has booted, and Slurm knows that")
    assert site.spares_held() == spares

    headers: dict[str, Any] = {"Authorization": f"Bearer {site.operator_token_file.read_text()}"}
    body = {"reason": "one is enough", "size": 1}
    site.http.post("/v1/spares/size", json=body, headers=headers).raise_for_status()
    site.wait_for(lambda: site.spares_held() == ["n4"], 60, "the one that is switched off is given back")
