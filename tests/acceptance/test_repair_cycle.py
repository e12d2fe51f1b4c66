"""Nodes come back into service on a real cluster: one passes its test, one fails it twice."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import PYTHON_PATH, REPOSITORY
from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.notify.site import HttpReceiver, http_receiver, webhook
from tests.testbed.site import Site
from understudy_wire.stages import StageName

pytestmark = pytest.mark.cluster

SELFCHECK = (
    f"env PYTHONPATH={PYTHON_PATH} {sys.executable} -m understudy_agent.entry selfcheck"
    " --device cpu --seconds 0.1 --memory 0.001"
)

STAGES_COMMAND = f"env PYTHONPATH={PYTHON_PATH} {sys.executable} -m understudy_agent.entry selfcheck"


def stages(*chosen: str) -> dict[str, dict[str, Any]]:
    """These, as short as they can be, and no others."""
    off = {name.value: {"enabled": False} for name in StageName}
    return off | {name: {"seconds": 0} for name in chosen}


@pytest.fixture
def tickets() -> Iterator[HttpReceiver]:
    """A site's ticket system. It checks signatures, and refuses what comes until `status` is another."""
    with http_receiver() as receiver:
        receiver.status = 503
        yield receiver
    assert receiver.wrong == []


def wait_for(site: Site, predicate: Callable[[], bool], timeout_seconds: float, what: str) -> None:
    """Meanwhile nodes that Slurm reboots are rebooted, as its RebootProgram would."""

    def reached() -> bool:
        for one in site.items("/v1/nodes"):
            if "REBOOT_ISSUED" in str(one["slurm"]):
                site.finish_reboot(one["name"])
        return predicate()

    site.wait_for(reached, timeout_seconds, what)


def wait_for_state(site: Site, node: str, state: str, timeout_seconds: float = 180) -> None:
    """One that lasts."""
    wait_for(site, lambda: bool(site.node(node)["state"] == state), timeout_seconds, f"{node} is {state}")


def wait_for_row(site: Site, node: str, row: int) -> None:
    """The state that it leads to may be over by then."""
    wait_for(site, lambda: row in rows_about(site, node), 180, f"row {row} about {node}")


def taken(site: Site, tickets: HttpReceiver) -> dict[str, Any]:
    """The first message, after the ticket system has refused it."""
    site.wait_for(lambda: tickets.refused, 60, "the ticket system is asked")
    tickets.status = 201
    site.wait_for(lambda: tickets.got, 60, "it takes the message about the ticket")
    return tickets.got[0]


RELEASED = ("n3: release: will be carried out (request ", "n3: release: waits for a guard (request ")
"""The second one where the node's last test has not left Slurm yet."""


def ask(site: Site, node: str, verb: str, reason: str) -> subprocess.CompletedProcess[str]:
    return run(site, "node", verb, node, reason)


def run(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["--url", site.url, "--token-file", str(site.operator_token_file)]
    command = [sys.executable, "-m", "understudy_controlplane", *words, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def rows_about(site: Site, node: str) -> list[int]:
    decisions = reversed(site.items("/v1/decisions?limit=1000"))
    return [one["table_row"] for one in decisions if one["subject"] == node and one["action"] != "nothing"]


def validating_site(make_site: MakeSite, tickets: HttpReceiver, tmp_path: Path) -> Site:
    """A node with a file `broken.NODE` fails the site's own part of its test."""
    tmp_path.chmod(0o755)
    site = make_site(
        nodes=4,
        spares=1,
        settings={
            "repair": {"enabled": True, "cooldown_seconds": 1},
            "notify": {"receivers": {"tickets": webhook(tmp_path, tickets, least="page")}},
            "validation": {
                "enabled": True,
                "selfcheck": SELFCHECK,
                "run_stages": "always",
                "stages_command": STAGES_COMMAND,
                "stages": stages("clock", "memory", "disk_write", "disk_read", "pcie"),
                "command": f'echo "tested on $SLURMD_NODENAME"; test ! -e {tmp_path}/broken.$SLURMD_NODENAME',
                "output_directory": str(tmp_path),
                "probation_hours": 0.002,
                "probation_weight": 1000,
            },
        },
    )
    gang.start_site(site)
    return site


def test_a_node_comes_back_after_its_test(make_site: MakeSite, tickets: HttpReceiver, tmp_path: Path) -> None:
    site = validating_site(make_site, tickets, tmp_path)
    before = site.cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", *shlex.split(SELFCHECK))
    assert (before.returncode, before.stdout.count("selfcheck: passed")) == (0, 2), "as a step, before a gang starts"

    site.nodes["n2"].fail_gpu()
    wait_for_row(site, "n2", 10)
    hungry = gang.submit(site, "--nodelist=n2", nodes=1, comment="not managed")
    wait_for_row(site, "n2", 210)
    assert gang.state(site, hungry) == "PENDING"
    wait_for_row(site, "n2", 220)
    assert rows_about(site, "n2") == [10, 200, 210, 220]
    (test,) = [one for one in site.items("/v1/recoveries") if one["kind"] == "validate"]
    output = test["steps"][-1]["detail"]
    assert "0 wrong elements" in output, output
    assert "selfcheck: passed\n== passed" in output
    assert "== 3 checks, 0 failed" in output
    measured = {one["stage"]: one for one in site.node("n2")["stages"]}
    assert {name: one["status"] for name, one in measured.items()} == {
        "clock": measured["clock"]["status"],
        "memory": "passed",
        "disk_write": measured["disk_write"]["status"],
        "disk_read": measured["disk_read"]["status"],
        "pcie": "not_possible",
    }, "whether the clock is kept, and the disk is one, depends on this machine"
    assert measured["memory"]["value"] > 0
    assert "failed" not in {one["status"] for one in measured.values()}, measured
    site.wait_for(lambda: site.node("n2")["slurm"]["weight"] == 1000, 60, "jobs get it last")
    wait_for_state(site, "n2", "in_service")
    site.wait_for(lambda: "understudy_node_n2" not in gang.reservations(site), 60, "it is kept no longer")
    site.wait_for(lambda: site.node("n2")["slurm"]["weight"] == 1, 60, "jobs get it like any other")
    gang.wait_running(site, hungry)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_node_that_fails_its_test_twice_goes_to_a_person(
    make_site: MakeSite, tickets: HttpReceiver, tmp_path: Path
) -> None:
    site = validating_site(make_site, tickets, tmp_path)
    (tmp_path / "broken.n3").touch()
    serial = site.nodes["n3"].gpus.read()[0].serial
    site.nodes["n3"].fail_gpu()
    wait_for_row(site, "n3", 10)
    hungry = gang.submit(site, "--nodelist=n3", nodes=1, comment="not managed")
    wait_for_state(
        site, "n3", "manual_repair", 360
    )  # two reboots and two tests: Slurm may start a job late after a reboot
    assert rows_about(site, "n3") == [10, 200, 210, 221, 200, 210, 221, 202]
    message = taken(site, tickets)
    assert (message["importance"], "n3" in message["notices"][0]["about"]) == ("page", True)
    ticket = site.items("/v1/tickets")[0]["body"]
    assert ticket["node"] == "n3"
    ticket_text = json.dumps(ticket["evidence"])
    for what in ("Xid (PCI:", serial, "tested on n3", "FAILED with exit code 1"):
        assert what in ticket_text, what
    assert "DRAIN" in site.node("n3")["slurm"]["flags"]
    assert "understudy_node_n3" not in gang.reservations(site)

    assert gang.state(site, hungry) == "PENDING"

    # A person repairs it, and has it tested.
    (tmp_path / "broken.n3").unlink()
    assert ask(site, "n3", "release", "new GPU").stdout.startswith(RELEASED)
    wait_for_state(site, "n3", "in_service")
    site.wait_for(lambda: rows_about(site, "n3")[-3:] == [253, 220, 231], 60, "its weight is put back")
    assert site.items("/v1/tickets")[0]["closed_at"] is not None
    again = ask(site, "n3", "release", "again")
    assert (again.returncode, "in_service: release would change nothing" in again.stderr) == (3, True)
    gang.wait_running(site, hungry)


def test_a_person_may_take_the_node_at_any_time(make_site: MakeSite) -> None:
    site = make_site(
        nodes=4,
        spares=1,
        settings={
            "repair": {"enabled": True, "cooldown_seconds": 1},
            "validation": {"enabled": True, "command": "sleep 600"},
        },
    )
    gang.start_site(site)
    site.nodes["n2"].fail_gpu()
    wait_for_state(site, "n2", "validating")
    site.wait_for(lambda: "ALLOCATED" in site.node("n2")["slurm"]["state"], 60, "its test runs")
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=alice: let me see")
    site.wait_for(lambda: site.node("n2")["state"] == "foreign_drain", 60, "the control plane lets go of it")
    site.wait_for(lambda: "understudy_node_n2" not in gang.reservations(site), 60, "it is kept no longer")
    assert site.node("n2")["slurm"]["reason"] == "alice: let me see"
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    site.wait_for(lambda: site.node("n2")["state"] == "in_service", 60, "it is hers to resume")

    assert ask(site, "n1", "hold", "new cables").returncode == 0
    site.wait_for(lambda: "DRAIN" in site.node("n1")["slurm"]["flags"], 60, "it is held")
    assert site.node("n1")["state"] == "operator_hold"
    site.cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    site.wait_for(lambda: site.node("n1")["state"] == "in_service", 60, "resuming it ends the hold")


def test_a_gpu_that_asks_for_a_reset_gets_one_and_the_node_is_not_rebooted(make_site: MakeSite, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    reset, held = tmp_path / "reset", tmp_path / "held"
    site = make_site(
        nodes=4,
        spares=1,
        settings={
            "repair": {
                "enabled": True,
                "cooldown_seconds": 1,
                "reset_command": str(reset),
                "evidence_command": str(held),
            },
            "validation": {"enabled": True, "command": "true"},
        },
    )
    state = site.nodes["n2"].gpus.path
    held.write_text(
        "#!/bin/sh\nfor process in /proc/[0-9]*; do\n"
        "  grep -qz nvml_process $process/cmdline 2>/dev/null || continue\n"
        f"  grep -qz FAKE_NVML_STATE={state} $process/environ 2>/dev/null && echo held\ndone\n"
    )
    reset.write_text(
        f"#!/bin/sh\n{held}\necho resetting $UNDERSTUDY_GPU of $SLURMD_NODENAME\n"
        f"cp {state}.well {state}.new && mv {state}.new {state}\n"
    )
    held.chmod(0o755)
    reset.chmod(0o755)
    Path(f"{state}.well").write_bytes(state.read_bytes())
    gang.start_site(site)
    site.nodes["n2"].gpus.change(0, recovery_action=1)
    wait_for_state(site, "n2", "probation")
    assert rows_about(site, "n2") == [10, 200, 210, 220]
    (repair,) = [one for one in site.items("/v1/recoveries") if one["kind"] == "repair"]
    assert [step["name"] for step in repair["steps"]] == ["hold_node", "resume_node", "reset_gpu"]
    bus_id = site.nodes["n2"].gpus.read()[0].bus_id
    output = repair["steps"][-1]["detail"]
    assert output.endswith(f"COMPLETED: held\nresetting {bus_id} of n2"), (
        f"NVML is released for the reset, and not before: {output}"
    )
    site.wait_for(lambda: all(gpu["status"] == "ok" for gpu in site.node("n2")["gpus"]), 60, "NVML is asked again")


@pytest.mark.long
def test_idle_spares_are_validated_in_turn_while_they_are_reserved_as_spares(make_site: MakeSite) -> None:
    validation = {"enabled": True, "selfcheck": "", "command": "true", "dcgm_level": 0, "spare_check_hours": 24}
    validation |= {"run_stages": "always", "stages_command": STAGES_COMMAND, "stages": stages("memory", "pcie")}
    site = make_site(nodes=3, spares=2, settings={"validation": validation})
    gang.start_site(site)
    spares = [one["name"] for one in site.items("/v1/nodes") if one["spare"]]
    wait_for(site, lambda: all(rows_about(site, name) == [263, 227] for name in spares), 120, "both were validated")
    wait_for(site, lambda: set(gang.reservations(site)) == {"understudy_spares"}, 60, "no other reservation is left")
    wait_for(site, lambda: all(site.node(name)["state"] == "in_service" for name in spares), 60, "both are in service")
    assert len([one for one in site.items("/v1/nodes") if one["spare"]]) == 2
    for name in spares:
        found = {one["stage"]: one["status"] for one in site.node(name)["stages"]}
        assert found == {"memory": "passed", "pcie": "not_possible"}, "it came in the comment of the job"


@pytest.mark.long
def test_the_network_of_a_node_is_tested_with_idle_nodes_by_jobs_that_end(make_site: MakeSite) -> None:
    """The pass mark is low: all nodes share this machine."""
    network = {"network": {"enabled": True, "seconds": 0.05, "pass": 0.01}}
    validation = {"enabled": True, "selfcheck": "", "command": "true", "dcgm_level": 0, "run_stages": "always"}
    validation |= {"stages_command": STAGES_COMMAND, "stages": stages() | network, "burn_in_hours": 0.002}
    site = make_site(nodes=4, spares=0, settings={"validation": validation})
    gang.start_site(site)
    busy = gang.submit(site, "--nodelist=n4", nodes=1, comment="not managed")
    gang.wait_running(site, busy)
    asked = ask(site, "n1", "validate", "is its network well?")
    assert asked.returncode == 0, asked.stderr
    wait_for_state(site, "n1", "probation")
    (result,) = site.node("n1")["stages"]
    assert (result["stage"], result["status"], result["unit"]) == ("network", "passed", "GB/s"), result
    assert result["value"] > 0
    assert sorted(line.split(" NodeList=")[1].split()[0] for line in network_jobs(site)) == ["n2", "n3"], (
        "n4 was in use"
    )
    assert gang.state(site, busy) == "RUNNING"
    site.wait_for(lambda: "RUNNING" not in "".join(network_jobs(site)), 60, "the peers' jobs have ended")

    begun, rack = time.time(), ("n1", "n2", "n3")
    asked = run(site, "commission", "start", "n[1-3]", "a new rack")
    assert asked.returncode == 0, asked.stderr
    wait_for(
        site, lambda: all(has_passed_since(site, name, begun) for name in rack), 180, "each with the others as peers"
    )
    for name in rack:
        wait_for_state(site, name, "probation")
    site.wait_for(lambda: not gang.reservations(site), 60, "none is kept")
    assert len(network_jobs(site)) == 2 + 3 + 2 * 3, "each node's own, and one on each of its peers"
    assert gang.state(site, busy) == "RUNNING"


def has_passed_since(site: Site, name: str, since: float) -> bool:
    return any(one["at"] > since and one["status"] == "passed" for one in site.node(name)["stages"])


def network_jobs(site: Site) -> list[str]:
    jobs = site.cluster.run("scontrol", "show", "jobs", "--oneliner").stdout.splitlines()
    return [line for line in jobs if "JobName=understudy-network" in line]
