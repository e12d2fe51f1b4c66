"""Understudy never changes what it does not manage, and does nothing when in doubt."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests import PYTHON_PATH
from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.testbed.site import Site

pytestmark = pytest.mark.cluster


def test_a_job_that_is_not_managed_stays_where_it_is_and_a_foreign_drain_is_left_alone(make_site: MakeSite) -> None:
    site = make_site(nodes=5, spares=1)
    gang.start_site(site)
    unmanaged = gang.submit(site, nodes=2, comment="not managed")
    gang.wait_running(site, unmanaged)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 60, "n2 is quarantined")
    site.wait_for(lambda: "DRAIN" in site.node("n2")["slurm"]["flags"], 60, "n2 is drained")
    fields = gang.job_fields(site, unmanaged)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")
    assert gang.nodes_of(site, unmanaged) == ["n1", "n2"]
    assert site.recoveries() == []

    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    assert gang.nodes_of(site, job) == ["n3", "n4"]
    site.cluster.run("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=NHC: disk full")
    site.wait_for(lambda: site.node("n4")["state"] == "foreign_drain", 60, "the drain is noticed")
    site.nodes["n4"].fail_gpu()
    site.wait_for(
        lambda: [one for one in site.items("/v1/decisions") if one["table_row"] == 42], 60, "row 42 is decided"
    )
    gang.wait_running(site, job, restarts=1)
    assert gang.nodes_of(site, job) == ["n3", "n5"]
    assert site.node("n4")["slurm"]["reason"] == "NHC: disk full"
    site.cluster.run("scontrol", "update", "NodeName=n4", "State=RESUME")
    site.wait_for(lambda: site.node("n4")["state"] == "in_service", 60, "the node is back as its drainer wished")


def test_observe_mode_records_decisions_and_changes_nothing(make_site: MakeSite) -> None:
    site = make_site(nodes=4, spares=1, mode="observe")
    site.start_control_plane()
    site.start_agents()
    job = gang.submit(site, nodes=2)
    gang.wait_running(site, job)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: site.items("/v1/incidents"), 60, "the incident is recorded")
    site.wait_for(
        lambda: [one for one in site.items("/v1/decisions") if one["because"] == "dry_run" and one["subject"] == "n2"],
        60,
        "the decision that mode act would carry out is recorded",
    )
    assert site.node("n2")["slurm"]["flags"] == []
    assert gang.reservations(site) == {}
    assert gang.state(site, job) == "RUNNING"
    assert site.items("/v1/recoveries") == []


def refuse_a_node_that_claims_to_be_another(site: Site) -> None:
    """Root of n3, with the cluster's MUNGE key, in the name of n1: only the address of n3 stands against it."""
    own = site.nodes["n3"].directory
    forger = own / "forger"
    forger.mkdir()
    for name in ("kmsg", "boot_id"):
        shutil.copy(own / name, forger)
    text = site.nodes["n3"].config_file.read_text().replace(f"{own}/", f"{forger}/")
    config = forger / "agent.toml"
    config.write_text(f'node = "n1"\n{text}\n[nvml]\nenabled = false\n')
    log = site.cluster.layout.log_directory / "forger.log"
    boot_id = site.node("n1")["boot_id"]
    command = [sys.executable, "-m", "understudy_agent", "--config", str(config)]
    site.cluster.spawn_on("n3", command, log, {"PYTHONPATH": PYTHON_PATH})
    refusal = "which is no address of node n1"
    site.wait_for(lambda: log.exists() and refusal in log.read_text(), 30, "the forger is refused")
    assert site.node("n1")["boot_id"] == boot_id


@pytest.mark.long
def test_a_pause_holds_everything_back_until_an_operator_resumes(make_site: MakeSite) -> None:
    site = make_site(nodes=4, spares=1, munge=True)
    gang.start_site(site)
    headers = {"Authorization": f"Bearer {site.operator_token_file.read_text()}"}
    refuse_a_node_that_claims_to_be_another(site)
    intent = {"reason": "switch maintenance"}
    assert site.http.post("/v1/pause", json=intent).status_code == 403, "a viewer's token"
    site.http.post("/v1/pause", json=intent, headers=headers).raise_for_status()
    site.nodes["n2"].fail_gpu()
    site.wait_for(
        lambda: [one for one in site.items("/v1/decisions") if one["because"] == "paused"],
        60,
        "it waits for a person",
    )
    assert site.node("n2")["slurm"]["flags"] == []
    site.http.post("/v1/resume", json=intent, headers=headers).raise_for_status()
    site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 60, "work is taken up again")
