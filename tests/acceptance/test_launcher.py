"""Gangs under `understudy run` with spares in their own allocation, agents and control plane in mode act.

The same allocation, the same final weights, whatever fails; and the pool where the allocation's spares are used up.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import Any

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import LauncherJob, swaps, wait_succeeded
from tests.testbed.processes import all_processes, command_of, environment_of, read_process
from tests.testbed.site import Site
from tests.tokens import bearer
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.cluster


def launcher_of(job: LauncherJob) -> int:
    """Its process id: the oldest one's. What it has just forked looks the same until it runs another program."""
    found = [
        process
        for pid in all_processes()
        if job.owns(environment_of(pid))
        and b"\0understudy_launcher\0" in command_of(pid)
        and (process := read_process(pid)) is not None
    ]
    return min(found, key=lambda process: process.started_ticks).pid


def started_after(job: LauncherJob, launch: int, at: float) -> float:
    return max(float(one["at"]) for one in job.starts(0, launch)) - at


def spares_with_program(site: Site, job: LauncherJob) -> set[str]:
    """Nodes of the pool whose agents have read, as the job's user, what its ranks have started with."""
    log = (site.cluster.layout.log_directory / "controlplane.log").read_text()
    lines = [line for line in log.splitlines() if "event=spare_has_program" in line and f"/{job.job}@" in line]
    return {name for name in site.nodes for line in lines if f" node={name} " in line}


def test_xids_are_dealt_with_within_the_allocation(make_site: MakeSite) -> None:
    site = make_site(nodes=8, spares=1)
    gang.start_site(site)
    job = LauncherJob(site, nodes=4, spares=3)
    nodes = job.wait_for_launch(0, 0)
    assert nodes == ["n1", "n2", "n3", "n4"]
    seconds = []
    for launch, (failing, instead) in enumerate((("n2", "n5"), ("n1", "n6")), start=1):
        job.wait_for_checkpoint(0, launch - 1)
        job.wait_for_standbys(launch, 7 - (launch - 1))
        at = site.nodes[failing].fail_gpu()
        nodes = [instead if node == failing else node for node in nodes]
        assert job.wait_for_launch(0, launch) == nodes
        seconds.append(started_after(job, launch, at))
        wait_succeeded(site, launch)
        recovery = swaps(site)[-1]
        print(f"\nXid on {failing} to all new processes: {seconds[-1]:.3f} s; {recovery['phases_ms']}")
        assert all(one["from"] > 0 for one in job.starts(0, launch))
        assert site.node(failing)["state"] == "quarantined"
        reason = site.node(failing)["slurm"]["reason"]
        assert reason.startswith(("understudy: xid.79", "understudy: nvml.lost")), "whichever the agent read first"
    print(f"median {statistics.median(seconds):.3f} s")
    assert gang.job_fields(site, job.job)["Restarts"] == "0"
    assert set(gang.reservations(site)) == {"understudy_spares"}
    assert len(site.recoveries()) == 0
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "0"


@pytest.mark.long
def test_ranks_of_a_tensor_parallel_group_stay_in_one_rack(make_site: MakeSite) -> None:
    """The order holds in the first launch of an allocation, after a requeue, and after a swap for which other nodes
    move.

    The first launch waits two seconds for the control plane, and then begins in Slurm's order.
    """
    site = make_site(nodes=8, spares=1, leaf_switches={"leaf1": ("n1", "n2", "n4", "n6"), "leaf2": ("n3", "n5", "n7")})
    gang.start_site(site)
    job = LauncherJob(site, 4, 2, arguments="--tensor-model-parallel-size 2")
    assert job.wait_for_launch(0, 0) == ["n1", "n2", "n6", "n4"], "not n3 and n4, as Slurm sorts them"
    job.wait_for_checkpoint(0, 0)
    job.wait_for_standbys(1, 6)
    site.nodes["n6"].fail_gpu()
    assert job.wait_for_launch(0, 1) == ["n1", "n2", "n3", "n5"], "n4 is well, and alone in its rack"
    wait_succeeded(site, 1)
    assert all(one["from"] > 0 for one in job.starts(0, 1))
    job.assert_trained()
    print(f"\n{[one['message'] for one in job.events('arranged')]}; {swaps(site)[-1]['phases_ms']}")


def test_a_dead_node_costs_no_allocation_even_without_a_control_plane(make_site: MakeSite) -> None:
    """Nor any time of the job's own: what the fault took is added to its limit, up to the site's bound."""
    site = make_site(nodes=8, spares=1, settings={"recovery": {"time_credit_minutes_max": 1}})
    gang.start_site(site)
    job = LauncherJob(site, 4, 2, "--time=60")
    job.wait_for_launch(0, 0)
    job.wait_for_checkpoint(0, 0)
    job.wait_for_standbys(1, 6)
    time.sleep(6)  # a launcher hears of checkpoints with every answer: every five seconds
    site.kill_control_plane()
    time.sleep(1)  # until its launcher knows
    at = site.kill_node("n2")
    assert job.wait_for_launch(0, 1, 20) == ["n1", "n5", "n3", "n4"]
    print(f"\ndead node to all new processes, control plane dead meanwhile: {started_after(job, 1, at):.3f} s")
    (restored,) = job.events("restore_given")
    assert restored["step"] > 0
    assert {one["from"] for one in job.starts(0, 1)} == {restored["step"]}
    reached = restored["step"] + 30
    site.wait_for((job.home / f"checkpoint-{reached}").exists, 60, "it trains on without a control plane")
    site.start_control_plane()
    site.wait_for(lambda: site.node("n2")["state"] == "quarantined", 60, "the dead node is quarantined")
    site.wait_for(lambda: "DRAIN" in site.node("n2")["slurm"]["flags"], 60, "and drained")
    fields = gang.job_fields(site, job.job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "0")
    site.wait_for(lambda: job.time_limit_minutes() == 61, 60, "the time that it took is credited")
    job.wait_for_checkpoint(0, 1)
    at = site.lose_node("n3")
    assert job.wait_for_launch(0, 2) == ["n1", "n5", "n6", "n4"]
    print(f"dead node to all new processes: {started_after(job, 2, at):.3f} s")
    site.wait_for(lambda: site.node("n3")["state"] == "quarantined", 60, "this one, too")
    job.assert_trained()
    assert job.time_limit_minutes() == 61, "the bound is for all of the allocation's faults"
    assert gang.job_fields(site, job.job)["Restarts"] == "0"
    assert len(site.recoveries()) == 0


@pytest.mark.long
def test_a_control_plane_killed_in_the_middle_goes_on_where_it_was(make_site: MakeSite) -> None:
    """Its launcher stands still meanwhile, so that the order cannot have been carried out."""
    site = make_site(nodes=8, spares=1)
    gang.start_site(site)
    job = LauncherJob(site, nodes=4, spares=2)
    job.wait_for_launch(0, 0)
    job.wait_for_checkpoint(0, 0)
    launcher = launcher_of(job)
    os.kill(launcher, signal.SIGSTOP)
    try:
        site.nodes["n2"].fail_gpu()
        site.wait_for(lambda: swaps(site), 60, "a swap is begun")
        site.kill_control_plane()
        site.start_control_plane()
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert job.wait_for_launch(0, 1) == ["n1", "n5", "n3", "n4"]
    wait_succeeded(site, 1)
    assert len(swaps(site)) == 1
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "0"


@pytest.mark.long
def test_without_spares_left_the_pool_follows(make_site: MakeSite) -> None:
    site = make_site(nodes=8, spares=3)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=1)
    assert job.wait_for_launch(0, 0) == ["n1", "n2"]
    job.wait_for_checkpoint(0, 0)
    site.nodes["n2"].fail_gpu()
    assert job.wait_for_launch(0, 1) == ["n1", "n3"]
    wait_succeeded(site, 1)
    job.wait_for_checkpoint(0, 1)
    site.wait_for(lambda: spares_with_program(site, job) >= {"n6", "n7"}, 60, "spares have read the program's files")
    site.nodes["n3"].fail_gpu()
    job.wait_for_launch(1, 0, 60)
    (moved,) = site.recoveries()
    assert sorted(moved["seats"]) == ["n1", "n6", "n7"]
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the swap has succeeded")
    assert gang.nodes_of(site, job.job) == ["n1", "n6", "n7"]
    assert all(one["from"] > 0 for one in job.starts(1, 0))
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "1"


@pytest.mark.long
def test_a_spare_of_the_pool_that_lacks_a_package_is_left_for_another_one(make_site: MakeSite) -> None:
    site = make_site(nodes=5, spares=2)
    gang.start_site(site)
    job = LauncherJob(site, nodes=3, spares=0)
    assert job.wait_for_launch(0, 0) == ["n1", "n2", "n3"]
    job.wait_for_checkpoint(0, 0)
    (job.home / "lacks-n4").touch()
    site.nodes["n2"].fail_gpu()
    seats = job.wait_for_launch(2, 0, 120)
    assert sorted(seats) == ["n1", "n3", "n5"]
    first, second = sorted(site.recoveries(), key=lambda one: one["id"])
    assert (first["seats"], sorted(second["seats"])) == (["n1", "n3", "n4"], ["n1", "n3", "n5"])
    assert [one["row"] for one in job.events("decision")] == ["L125"], "asked once, and no launch was wasted"
    assert site.node("n4")["state"] == "in_service"
    assert "DRAIN" not in site.node("n4")["slurm"]["flags"]
    fields = gang.job_fields(site, job.job)
    assert (fields["Restarts"], fields["ExcNodeList"]) == ("2", "n4")
    (incident,) = [one for one in site.items("/v1/incidents") if one["rule"] == "launches.newcomer"]
    assert "failed on n4" in incident["summary"]
    shown = site.http.get(f"/v1/jobs/{job.job}/evidence", headers=bearer(Role.ADMIN)).json()["items"]
    assert "on n4 wrote last: ModuleNotFoundError: No module named 'flash_attention_of_the_site'" in shown[0]["summary"]
    job.assert_trained()


def test_a_hang_is_found_and_the_gang_restarted_without_the_node_of_the_missing_rank(make_site: MakeSite) -> None:
    site = make_site(nodes=6, spares=0, settings={"hang": {"seconds_min": 2, "first_step_seconds": 30}})
    gang.start_site(site)
    job = LauncherJob(site, nodes=4, spares=2)
    assert job.wait_for_launch(0, 0) == ["n1", "n2", "n3", "n4"]
    job.wait_for_checkpoint(0, 0)
    job.stall(1, 0)
    at = time.time()
    assert job.wait_for_launch(0, 1) == ["n1", "n5", "n3", "n4"]
    print(f"\nhang to all new processes: {started_after(job, 1, at):.3f} s")
    (decision,) = [one for one in site.items("/v1/decisions") if one["table_row"] == 100]
    assert decision["subject"] == "n2"
    assert "rank 1 left collective" in decision["reason"]
    assert [one["row"] for one in job.events("decision")] == ["L110"]

    def evidence() -> Any:
        return site.http.get(f"/v1/jobs/{job.job}/evidence", headers=bearer(Role.ADMIN)).json()["items"]

    site.wait_for(evidence, 30, "what its ranks showed has arrived")
    (shown,) = evidence()
    assert (shown["launch"], shown["kind"]) == (0, "hang")
    assert "rank 1 on n2 did not enter collective" in shown["summary"]
    assert "ranks.py" in shown["text"], "the stacks of its ranks"
    wait_succeeded(site, 1)
    assert site.node("n2")["state"] == "suspect"
    assert "DRAIN" not in site.node("n2")["slurm"]["flags"]
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "0"


@pytest.mark.long
def test_a_dead_batch_host_takes_the_gang_to_the_pool_and_gives_no_new_budget(make_site: MakeSite) -> None:
    """The launcher dies with it, and with the launcher its ledger: the control plane keeps that."""
    site = make_site(nodes=7, spares=2)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=1)
    nodes = job.wait_for_launch(0, 0)
    host = nodes[0]
    assert gang.job_fields(site, job.job)["BatchHost"] == host
    job.wait_for_checkpoint(0, 0)
    for rank in (0, 1):
        job.stall(rank, 1, 2)
    job.kill_rank(0, launch=0)
    job.wait_for_launch(0, 1)
    job.kill_rank(1, launch=1)
    assert job.wait_for_launch(0, 2) == nodes
    time.sleep(2)  # facts are on their way for a second
    at = site.lose_node(host)
    seats = job.wait_for_launch(1, 0, 90)
    began = max(float(one["at"]) for one in job.starts(1, 0))
    print(f"\ndead batch host to all new processes: {began - at:.3f} s")
    assert host not in seats
    assert all(one["from"] > 0 for one in job.starts(1, 0))
    (taken_over,) = job.events("taken_over")
    assert taken_over["launches_without_progress"] == 1
    site.wait_for(lambda: site.recoveries()[-1]["status"] == "succeeded", 60, "the swap has succeeded")
    assert len(gang.nodes_of(site, job.job)) == 3
    job.assert_trained()
    assert gang.job_fields(site, job.job)["Restarts"] == "1"
