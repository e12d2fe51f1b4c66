"""The testbed's Slurm is a real one, dies like real nodes do, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import PYTHON_PATH, REPOSITORY
from tests.testbed import network
from tests.testbed.cluster import ClusterError, SlurmCluster
from tests.testbed.processes import Process, descendants, environment_of, is_running, marked, read_process, sweep

pytestmark = pytest.mark.cluster

RUN_ON = "trap '' TERM INT; setsid sleep 1000 & sleep 1000"
STARTER = """
import sys, time
from pathlib import Path
from tests.testbed.cluster import SlurmCluster
cluster = SlurmCluster(Path(sys.argv[1]), nodes=2)
cluster.start()
cluster.sbatch("--nodes=2", "--export=ALL", "--wrap", "/usr/bin/srun /usr/bin/sleep 1000")
print(cluster.layout.addresses.interface if cluster.has_machines else "none", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="understudy-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        sweep(Path(name))


@pytest.fixture
def cluster(directory: Path) -> Iterator[SlurmCluster]:
    with SlurmCluster(directory, nodes=3, racks={"rack1": 2, "rack2": 1}) as started:
        yield started


@pytest.fixture
def cluster_of_one_host(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    monkeypatch.setattr(network, "why_impossible", lambda: "namespaces are forbidden here")
    with SlurmCluster(directory, nodes=2) as started:
        yield started


def wait_for_text(cluster: SlurmCluster, path: Path, lines: int) -> list[str]:
    cluster.wait_until(lambda: path.exists() and path.read_text().count("\n") >= lines, 60, f"{lines} lines in {path}")
    return path.read_text().splitlines()


def run_gang(cluster: SlurmCluster) -> None:
    """A job on all nodes whose tasks ignore what asks them to end, and start others that leave their session."""
    out = cluster.user_directory("news") / "out"
    count = len(cluster.node_names)
    task = f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES >> {out}; {RUN_ON}"
    cluster.sbatch(f"--nodes={count}", "--gres=gpu:8", script=f'#!/bin/sh\nsrun sh -c "{_escaped(task)}"\n')
    wait_for_text(cluster, out, count)


def _escaped(text: str) -> str:
    return text.replace("$", "\\$")


def sleepers(cluster: SlurmCluster, node: str) -> list[Process]:
    found = (read_process(pid) for pid in cluster.node_pids(node))
    return [process for process in found if process is not None and process.name == "sleep"]


def is_task(process: Process) -> bool:
    """A job's `sleep`, and not one that holds a namespace."""
    return process.name == "sleep" and "SLURM_JOB_ID" in environment_of(process.pid)


def test_an_ordinary_users_job_runs_on_every_node_and_sees_its_gpus(cluster: SlurmCluster) -> None:
    run_gang(cluster)
    lines = (cluster.user_directory("news") / "out").read_text().splitlines()
    assert sorted(lines) == [f"{node} 0,1,2,3,4,5,6,7" for node in cluster.node_names]


def test_a_killed_node_loses_all_its_processes_at_once_and_the_others_none(cluster: SlurmCluster) -> None:
    run_gang(cluster)
    cluster.wait_until(lambda: all(len(sleepers(cluster, node)) == 2 for node in cluster.node_names), 60, "tasks")
    before = {node: cluster.node_pids(node) for node in cluster.node_names}

    killed = cluster.kill_node("n2")

    assert set(killed) == set(before["n2"])
    assert cluster.node_pids("n2") == []
    assert set(before["n1"]) <= set(cluster.node_pids("n1"))
    assert len(sleepers(cluster, "n3")) == 2
    state = cluster.run("scontrol", "show", "node", "n2", "--oneliner").stdout
    assert "State=ALLOCATED " in state, "Slurm does not know it yet"

    cluster.start_node("n2")
    cluster.wait_until(lambda: cluster.node_pids("n2"), 60, "n2 has a slurmd again")


@pytest.mark.long
def test_where_namespaces_are_forbidden_a_node_still_dies_with_all_that_runs_on_it(
    cluster_of_one_host: SlurmCluster,
) -> None:
    cluster = cluster_of_one_host
    run_gang(cluster)
    agents = [
        subprocess.Popen(["sleep", "1000"], env={**cluster.environment, "SLURMD_NODENAME": node})
        for node in ("n1", "n2")
    ]
    assert len(sleepers(cluster, "n2")) == 3
    assert agents[0].pid in cluster.kill_node("n1")
    assert agents[1].pid in {one.pid for one in sleepers(cluster, "n2")}, "Slurm may have ended the job's by now"
    assert cluster.node_pids("n1") == []
    assert agents[0].wait(5) == -signal.SIGKILL
    assert agents[1].poll() is None
    agents[1].kill()
    agents[1].wait(5)
    with pytest.raises(ClusterError, match="no cables: namespaces are forbidden here"):
        cluster.power_off("n2")


def port_of(cluster: SlurmCluster, machine: str) -> int:
    """Port of slurmctld, or of a node's slurmd."""
    layout = cluster.layout
    return layout.controller_port if machine == "controller" else layout.node_ports[layout.node_names.index(machine)]


def connect(cluster: SlurmCluster, machine: str) -> str:
    """How the daemon takes a connection: "open", "refused", or "silent" where nothing comes back."""
    try:
        socket.create_connection((cluster.layout.address_of(machine), port_of(cluster, machine)), 0.3).close()
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    return "open"


CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).close()
except TimeoutError:
    print("silent")
else:
    print("open")
"""


def connect_from(cluster: SlurmCluster, machine: str, other: str, seconds_max: float = 10) -> str:
    log = cluster.layout.log_directory / f"connect.{machine}.{other}"
    log.unlink(missing_ok=True)
    where = [cluster.layout.address_of(other), str(port_of(cluster, other)), str(seconds_max)]
    process = cluster.spawn_on(machine, [sys.executable, "-S", "-c", CONNECTS, *where], log)
    cluster.wait_until(lambda: not is_running(process), 30, f"{machine} has connected to {other}", 0.05)
    return log.read_text().strip()


@pytest.mark.machines
def test_nodes_are_machines_whose_cables_can_be_pulled(cluster: SlurmCluster) -> None:
    job = cluster.sbatch("--nodes=3", "--wrap", "srun sh -c 'hostname; hostname --ip-address; sleep 1000'")
    printed = wait_for_text(cluster, cluster.user_directory("news") / f"slurm-{job}.out", 6)
    assert set(printed) == {*cluster.node_names, *map(cluster.layout.address_of, cluster.node_names)}

    def all_connect() -> dict[str, str]:
        return {node: connect(cluster, node) for node in cluster.node_names}

    whole = {"n1": "open", "n2": "open", "n3": "open"}
    assert all_connect() == whole
    for fault in (cluster.lost_from, cluster.lost_to):
        with fault("n2"):
            assert all_connect() == whole | {"n2": "silent"}
    with cluster.rack_cut_off("rack1"):
        assert all_connect() == whole | {"n1": "silent", "n2": "silent"}
    with cluster.host_cut_off():
        assert all_connect() == dict.fromkeys(whole, "silent")
        assert connect_from(cluster, "n1", "n2") == "open", "nodes reach each other"
        assert connect_from(cluster, "login", "controller") == "open", "so do all other machines"
    cluster.wait_until(lambda: all_connect() == whole, 10, "this host has its cable again")
    assert cluster.run("hostname").stdout == "login\n"
    with cluster.unplugged("controller"):
        assert connect(cluster, "controller") == "silent"
        assert connect_from(cluster, "login", "controller", 0.3) == "silent"
        assert all_connect() == whole
    with cluster.cut_off("controller"):
        assert connect(cluster, "controller") == "silent"
        assert connect_from(cluster, "login", "controller") == "open"
    for sender, receiver in (("controller", "login"), ("login", "controller")):
        with cluster.lost_between(sender, receiver):
            assert connect_from(cluster, "login", "controller", 0.3) == "silent"
            assert connect(cluster, "controller") == "open"
    with cluster.unplugged("login"):
        assert connect_from(cluster, "login", "controller", 0.3) == "silent"
        assert connect(cluster, "controller") == "open"
    assert connect_from(cluster, "login", "controller") == "open"
    cluster.unplug("n1", "n3", networks=["management"])
    assert all_connect() == whole | {"n1": "silent", "n3": "silent"}
    cluster.plug_in("n1", "n3")
    cluster.wait_until(lambda: all_connect() == whole, 10, "this host has forgotten that n1 and n3 did not answer")
    with cluster.frozen("n3") as stopped:
        assert {process.name for process in stopped} >= {"slurmd", "slurmstepd", "sleep"}
        cluster.wait_until(
            lambda: {found.state for one in stopped if (found := read_process(one.pid))} == {"T"},
            10,
            "all have stopped, also one that was running",
        )
        assert all_connect() == whole, "its kernel still answers"
    assert {process.name for process in stopped if not is_running(process)} == set()

    before = cluster.node_pids("n2")
    assert set(cluster.power_off("n2")) == set(before)
    assert all_connect() == whole | {"n2": "silent"}
    cluster.plug_in("n2")
    cluster.wait_until(lambda: connect(cluster, "n2") == "refused", 60, "its kernel answers again")
    cluster.start_node("n2")
    cluster.wait_until(lambda: all_connect() == whole, 60, "n2 answers again")


def test_stopping_leaves_no_process_and_starting_again_works(directory: Path) -> None:
    cluster = SlurmCluster(directory, nodes=2)
    cluster.start()
    run_gang(cluster)
    everything = marked(directory)
    assert len([process for process in everything if is_task(process)]) == 4
    cluster.stop()
    cluster.stop()
    assert marked(directory) == []
    assert not [process for process in everything if (now := read_process(process.pid)) and now == process]
    cluster.start()
    try:
        assert cluster.run("sinfo", "--noheader", "--format=%D %T").stdout.split() == ["2", "idle"]
    finally:
        cluster.stop()


def start_elsewhere(directory: Path) -> tuple[subprocess.Popen[str], Path]:
    """The program that started a cluster, and this host's end of the cluster's network."""
    program = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(directory)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    interface = Path("/sys/class/net") / program.stdout.readline().strip()
    assert interface.exists() or network.why_impossible()
    deadline = time.monotonic() + 15
    while not any(is_task(process) for process in marked(directory)):
        assert time.monotonic() < deadline, "the job does not run"
        time.sleep(0.1)
    return program, interface


def assert_no_network_left(interface: Path) -> None:
    """The kernel removes a namespace some time after its last process."""
    deadline = time.monotonic() + 10
    while interface.exists():
        assert time.monotonic() < deadline, f"left behind: {interface}"
        time.sleep(0.05)


def finish(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.wait(5)
    assert program.stdout is not None
    program.stdout.close()


@pytest.mark.long
def test_a_cluster_whose_starter_is_killed_ends_itself(directory: Path) -> None:
    program, interface = start_elsewhere(directory)
    finish(program)
    deadline = time.monotonic() + 10
    while left := marked(directory):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    assert_no_network_left(interface)


@pytest.mark.long
def test_what_outlived_even_its_supervisor_is_swept_and_nothing_else(directory: Path) -> None:
    bystander = subprocess.Popen(["sleep", "1000"], env={"UNDERSTUDY_TESTBED": f"{directory}2"})
    program, interface = start_elsewhere(directory)
    supervisors = descendants([program.pid], {process.pid: process for process in marked(directory)})
    supervisor = min(supervisors)
    os.kill(supervisor, signal.SIGKILL)
    finish(program)
    time.sleep(0.3)
    assert "slurmd" not in {process.name for process in marked(directory)}, "daemons end with their supervisor"

    swept = sweep(directory)

    assert {"slurmstepd", "sleep"} <= {process.name for process in swept}
    assert marked(directory) == []
    assert_no_network_left(interface)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait(5)


@pytest.mark.long
def test_two_clusters_know_nothing_of_each_other(cluster: SlurmCluster) -> None:
    with tempfile.TemporaryDirectory(prefix="understudy-") as name:
        Path(name).chmod(0o755)
        with SlurmCluster(Path(name), nodes=1, gpus_per_node=0) as other:
            assert other.run("sinfo", "--noheader", "--Node", "--format=%N").stdout.split() == ["n1"]
            assert other.sbatch("--wrap", "true") == 1
        assert cluster.run("squeue", "--noheader").stdout == ""
        assert len(cluster.node_pids("n1")) == 1


@pytest.mark.long
def test_waiting_in_vain_says_for_what_and_shows_the_logs(cluster: SlurmCluster) -> None:
    with pytest.raises(ClusterError, match=r"(?s)not within 0.3 s: pigs fly.*slurmctld.log.*slurmd.n3.log"):
        cluster.wait_until(lambda: False, 0.1, "pigs fly")


def test_a_refused_job_says_why(cluster: SlurmCluster) -> None:
    with pytest.raises(ClusterError, match=r"sbatch --partition=nowhere .*invalid partition"):
        cluster.sbatch("--partition=nowhere", "--wrap", "true")
