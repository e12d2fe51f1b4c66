"""Two control planes on one PostgreSQL: the leader is frozen, killed, and ended as planned; the other one goes on."""

from __future__ import annotations

import os
import signal
import time

import httpx
import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.test_bad_days import DIES_SLOWLY, start_gang, wait_ended
from tests.testbed.processes import Process, is_running
from tests.testbed.prometheus import CLIENT
from tests.testbed.site import Site

pytestmark = pytest.mark.cluster

ANSWERS_SECONDS_MAX = 30.0
"""Far above what it takes on an idle machine: tests share one."""


def answers(url: str) -> bool:
    try:
        return CLIENT.get(f"{url}/healthz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def wait_for_leader(site: Site, url: str, what: str) -> None:
    begun = time.monotonic()
    site.cluster.wait_until(lambda: answers(url), ANSWERS_SECONDS_MAX, what, interval_seconds=0.05)
    print(f"{what}: after {time.monotonic() - begun:.2f} s")


def wait_ended_process(site: Site, process: Process) -> None:
    site.wait_for(lambda: not is_running(process), 60, "the process has ended")


@pytest.mark.machines
def test_whatever_becomes_of_the_leader_the_other_one_goes_on_and_nothing_is_done_twice(make_site: MakeSite) -> None:
    site = make_site(database_machine=True)
    job, nodes = start_gang(site, DIES_SLOWLY)
    first, second = site.control_plane_process, site.start_standby()
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: gang.job_fields(site, job).get("Restarts") == "1", 60, "the job is requeued")

    os.kill(first.pid, signal.SIGSTOP)  # in the middle of the recovery
    site.ask_standby()
    wait_for_leader(site, site.standby_url, "the standby leads after the leader was frozen")
    wait_ended(site)
    os.kill(first.pid, signal.SIGCONT)
    wait_ended_process(site, first)
    assert_moved_once(site, job, nodes)

    restarted = site.start_control_plane(wait=False)
    site.wait_for(lambda: second_stands_by(site), 30, "the first control plane stands by")
    os.kill(second.pid, signal.SIGKILL)
    wait_for_leader(site, site.url, "the standby leads after the leader was killed")

    third = site.start_standby()
    os.kill(restarted.pid, signal.SIGTERM)
    wait_for_leader(site, site.standby_url, "the standby leads after the leader was stopped")
    wait_ended_process(site, restarted)
    assert is_running(third)
    assert_moved_once(site, job, nodes)


def assert_moved_once(site: Site, job: int, nodes: list[str]) -> None:
    """A moment in which all agents were silent may be an incident, too: nothing follows from it."""
    (recovery,) = site.recoveries()
    assert recovery["status"] == "succeeded", recovery
    fields = gang.job_fields(site, job)
    assert (fields["JobState"], fields["Restarts"]) == ("RUNNING", "1")
    assert gang.nodes_of(site, job) == sorted({*nodes, "n6"} - {"n2"})
    assert site.node("n2")["slurm"]["reason"].startswith("understudy:")
    assert set(gang.reservations(site)) == {"understudy_spares"}
    assert [one["subject"] for one in site.items("/v1/incidents") if one["subject_kind"] == "node"] == ["n2"]


def second_stands_by(site: Site) -> bool:
    return "stands_by" in (site.cluster.layout.log_directory / "controlplane.log").read_text()
