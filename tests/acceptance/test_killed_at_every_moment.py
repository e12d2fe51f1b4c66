"""Nothing is done twice and nothing is forgotten, whenever the control plane is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.serve_and_die import DEATHS_FILE, EFFECTS_FILE
from tests.testbed.site import Site
from understudy_controlplane.decide.plans import SWAP_STEPS
from understudy_controlplane.fleet.recovery import StepName

MORTAL = ("-m", "tests.acceptance.serve_and_die")
WITHOUT_EFFECT = {StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP}

pytestmark = pytest.mark.cluster


def deaths(site: Site) -> set[str]:
    return set((site.directory / DEATHS_FILE).read_text().splitlines())


def wait_over_many_deaths(site: Site, predicate: Callable[[], object], what: str) -> None:
    def reached() -> bool:
        try:
            return site.healthy() and bool(predicate())
        except httpx.TransportError:  # killed while it was asked
            return False

    site.wait_for(reached, 200, what)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["xid", "dead_node"])
def test_a_recovery_survives_a_kill_after_every_journal_entry_and_every_effect(make_site: MakeSite, fault: str) -> None:
    site = make_site()
    spares = gang.others_and_spares(site)[1]
    gang.start_agents(site)
    control_plane = site.start_control_plane(MORTAL, wait=False)
    wait_over_many_deaths(site, lambda: site.spares_held() == spares, "the pool is filled")
    wait_over_many_deaths(site, lambda: gang.all_heard(site), "all nodes are heard")
    job = gang.submit(site)
    gang.wait_running(site, job)
    hungry = gang.submit(site, nodes=2, comment="none", user="games")
    assert gang.nodes_of(site, job) == ["n1", "n2", "n3", "n4"]

    site.nodes["n2"].fail_gpu() if fault == "xid" else site.kill_node("n2")
    wait_over_many_deaths(
        site,
        lambda: [one for one in site.recoveries() if f"ended {one['id']} {one['status']}" in deaths(site)],
        "the gang is recovered",
    )
    os.killpg(control_plane.pid, signal.SIGKILL)  # it would be killed again while it fills the pool
    site.wait_for(lambda: not site.healthy(), 60, "no control plane runs")
    site.start_control_plane()

    (recovery,) = site.recoveries()
    assert recovery["status"] == "succeeded", recovery
    assert (recovery["nodes"], recovery["spares"]) == (["n2"], ["n6"])
    fields = gang.job_fields(site, job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "1")
    assert gang.nodes_of(site, job) == ["n1", "n3", "n4", "n6"]
    assert gang.state(site, hungry) == "PENDING"
    held = gang.reservations(site)
    assert set(held) == {"understudy_spares"}
    assert {"n7", "n8"} <= set(held["understudy_spares"]) <= {"n5", "n7", "n8"}  # idle n5 joins the pool in time
    assert site.node("n2")["state"] == "quarantined"
    assert site.node("n2")["slurm"]["reason"].startswith("understudy:")
    incidents = site.items("/v1/incidents")
    assert [one["subject"] for one in incidents] == ["n2"], incidents

    effects = Counter((site.directory / EFFECTS_FILE).read_text().splitlines())
    assert [effect for effect, count in effects.items() if count > 1] == []
    assert {f"done {step.value}" for step in SWAP_STEPS} <= deaths(site)
    idle = WITHOUT_EFFECT | ({StepName.DOWN_NODES} if fault == "xid" else {StepName.REQUEUE_JOB})
    assert {f"intended {step.value}" for step in SWAP_STEPS if step not in idle} <= deaths(site)
