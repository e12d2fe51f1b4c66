"""Two control planes on one PostgreSQL: the leader is frozen, killed, and ended as planned; the other one goes on.

What was done twice is counted in slurmctld's log.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import LauncherJob
from tests.acceptance.test_bad_days import DIES_SLOWLY, start_gang, wait_ended
from tests.testbed.processes import Process, is_running
from tests.testbed.prometheus import CLIENT
from tests.testbed.site import Site
from understudy_controlplane.decide.leadership import SETTLED_SECONDS

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


# -- a gang that trains, and each fault of the leader ----------------------------------------------------------------


@contextmanager
def killed(site: Site) -> Iterator[None]:
    os.kill(site.control_plane_process.pid, signal.SIGKILL)
    yield


@contextmanager
def stopped(site: Site) -> Iterator[None]:
    os.kill(site.control_plane_process.pid, signal.SIGTERM)
    yield


@contextmanager
def frozen(site: Site) -> Iterator[None]:
    os.kill(site.control_plane_process.pid, signal.SIGSTOP)
    yield
    os.kill(site.control_plane_process.pid, signal.SIGCONT)


@contextmanager
def cut_from_agents(site: Site) -> Iterator[None]:
    with ExitStack() as cuts:
        for name in site.nodes:
            cuts.enter_context(site.cluster.cut_off(name))
        yield


@contextmanager
def disk_full(site: Site) -> Iterator[None]:
    """No file takes a byte more."""
    resource.prlimit(site.control_plane_process.pid, resource.RLIMIT_FSIZE, (0, 0))
    yield


@contextmanager
def database_stands_still(site: Site) -> Iterator[None]:
    with site.cluster.frozen("database"):
        time.sleep(60.0)
    yield


SERVE_ON_HOST = "tests.acceptance.serve_on_host"


@dataclass(frozen=True, slots=True)
class LeaderFault:
    begin: Callable[[Site], AbstractContextManager[object]]
    moves: bool = True
    """The other one takes the lead while it lasts."""
    ahead_seconds: float = 0.0
    """Error of the leader's clock."""
    settled_seconds: float = SETTLED_SECONDS
    """After this time it passes the lead on where it cannot work."""


LEADER_FAULTS = {
    "killed": LeaderFault(killed),
    "frozen": LeaderFault(frozen),
    "planned": LeaderFault(stopped),
    "cut from the database": LeaderFault(lambda site: site.cluster.cut_off("database")),
    "cut from agents": LeaderFault(cut_from_agents, settled_seconds=0.0),
    "cut from Slurm": LeaderFault(lambda site: site.cluster.cut_off("controller"), settled_seconds=0.0),
    "disk full": LeaderFault(disk_full, moves=False),
    "clock a minute behind": LeaderFault(killed, ahead_seconds=-60.0),
    "clock a minute ahead": LeaderFault(killed, ahead_seconds=60.0),
    "database away for a minute": LeaderFault(database_stands_still, moves=False),
}

CHANGES = re.compile(
    r"update_node: node \S+ state set to \w+"
    r"|Requeuing JobId=\d+"
    r"|Created reservation=\S+"
    r"|delete_reservation complete for \S+"
    r"|REQUEST_KILL_JOB JobId=\S+"
    r"|Allocate JobId=\d+ NodeList=\S+"
)
"""Lines of slurmctld 22.05 about changes, each of which changes more each time that it is made."""

ROUNDS = 20
"""The fault of the leader comes a little later in the recovery with each."""


def changes(site: Site) -> Counter[str]:
    log = (site.cluster.layout.log_directory / "slurmctld.log").read_text(errors="replace")
    return Counter(CHANGES.findall(log))


@pytest.mark.machines
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", LEADER_FAULTS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_gang_trains_to_the_right_weights_and_slurm_carries_out_each_change_once(
    make_site: MakeSite, fault: str, number: int
) -> None:
    what = LEADER_FAULTS[fault]
    site = make_site(nodes=6, spares=2, database_machine=True)
    gang.start_site(site, ("-m", SERVE_ON_HOST, str(what.ahead_seconds), str(what.settled_seconds)))
    first = site.control_plane_process
    second = site.start_standby(("-m", SERVE_ON_HOST, "0", str(SETTLED_SECONDS)))
    job = LauncherJob(site, nodes=4, spares=0)
    nodes = job.wait_for_launch(0, 0)
    job.wait_for_checkpoint(0, 0)
    site.nodes["n2"].fail_gpu()
    site.wait_for(lambda: "DRAIN" in state_in_slurm(site, "n2"), 60, "the recovery has begun")
    time.sleep(0.1 * number)
    with what.begin(site):
        if what.moves:
            site.ask_standby()
            wait_for_leader(site, site.standby_url, f"the other one leads: {fault}")
        instead = job.wait_for_launch(1, 0, 180)
    if what.moves:
        wait_ended_process(site, first)
        assert is_running(second)
    elif not answers(site.url):
        site.ask_standby()
    wait_ended(site)
    assert sorted(instead) == sorted({*nodes, "n5"} - {"n2"})
    assert all(one["from"] > 0 for one in job.starts(1, 0)), "it went on from a checkpoint"
    assert [one["status"] for one in site.recoveries()] == ["succeeded"]
    job.assert_trained()
    made = changes(site)
    assert made[f"Requeuing JobId={job.job}"] == made["update_node: node n2 state set to DRAINING"] == 1, made
    assert {change: count for change, count in made.items() if count > 1} == {}


def state_in_slurm(site: Site, node: str) -> str:
    return site.cluster.run("scontrol", "show", "node", node).stdout
