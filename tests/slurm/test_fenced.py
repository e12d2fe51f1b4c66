"""The gateway of a control plane that may lose the lead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.fenced import as_one_step, fenced
from understudy_controlplane.slurm.protocol import READS, NotSent, Slurm, SlurmUnavailable

CHANGES = sorted(
    name for name in vars(Slurm) if not name.startswith("_") and name not in READS and callable(getattr(Slurm, name))
)


def test_each_call_that_changes_something_needs_the_lead() -> None:
    assert "requeue_job" in CHANGES
    slurm = fenced(VirtualSlurm(["n1"]), lambda: "another control plane leads", 2.0)
    for name in CHANGES:
        with pytest.raises(NotSent, match=f"{name} was not sent to Slurm: another control plane leads"):
            getattr(slurm, name)()


def test_reading_needs_no_lead() -> None:
    slurm = fenced(VirtualSlurm(["n1"]), lambda: "another control plane leads", 2.0)
    assert [node.name for node in slurm.nodes()] == ["n1"]


def test_the_lead_is_looked_at_before_each_call() -> None:
    """A step may be a loop of calls."""
    answers = iter(["", "the lease is over"])
    virtual = VirtualSlurm(["n1", "n2"])
    slurm = fenced(virtual, lambda: next(answers), 2.0)

    def act() -> None:
        slurm.drain_node("n1", "understudy: test")
        slurm.drain_node("n2", "understudy: test")

    with pytest.raises(SlurmUnavailable) as raised:
        as_one_step(act)
    assert not isinstance(raised.value, NotSent), "a part of the step was sent"
    assert [node.name for node in virtual.nodes() if node.taken_out] == ["n1"]


def command(folder: Path, text: str) -> CommandLineGateway:
    scontrol = folder / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{text}\n")
    scontrol.chmod(0o755)
    return CommandLineGateway(str(scontrol), timeout_seconds=30)


@pytest.mark.integration
def test_a_call_ends_within_the_time_for_which_the_next_leader_waits(tmp_path: Path) -> None:
    slurm = fenced(command(tmp_path, "exec sleep 30"), lambda: "", 0.3)
    begun = time.monotonic()
    with pytest.raises(SlurmUnavailable, match="did not end within"):
        slurm.drain_node("n1", "understudy: test")
    assert time.monotonic() - begun < 20


FROZEN_LEADER = """
import sys
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.fenced import fenced
from understudy_controlplane.slurm.pyslurm_gateway import PyslurmGateway
command_line = CommandLineGateway(sys.argv[1], timeout_seconds=30)
gateway = command_line if sys.argv[2] == "cli" else PyslurmGateway(command_line, timeout_seconds=30)
fenced(gateway, lambda: "", 1.5).drain_node("n1", "understudy: test")
"""

PYSLURM = """
import os, time
__version__ = "25.11.2"
def slurm_api_version(): return (25, 11, 2)
class Node:
    def __init__(self, name=None, **changes): pass
    def modify(self, changes):
        open(os.environ["BEGUN"], "w").close()
        time.sleep(3)
        open(os.environ["SENT"], "w").close()
"""


@pytest.mark.integration
@pytest.mark.parametrize("gateway", ["cli", "pyslurm"])
def test_a_call_of_a_leader_that_is_frozen_alone_ends_in_time(tmp_path: Path, gateway: str) -> None:
    """Its child is not frozen with it, and would reach slurmctld when another control plane leads."""
    begun, sent = tmp_path / "begun", tmp_path / "sent"
    command(tmp_path, f"touch {begun}; sleep 3; touch {sent}")
    (tmp_path / "pyslurm.py").write_text(PYSLURM)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "BEGUN": str(begun), "SENT": str(sent), "PYTHONPATH": path}
    arguments = [sys.executable, "-c", FROZEN_LEADER, str(tmp_path / "scontrol"), gateway]
    leader = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not begun.exists():
            assert leader.poll() is None
            time.sleep(0.01)
        leader.send_signal(signal.SIGSTOP)
        time.sleep(3.5)
        assert not sent.exists()
    finally:
        leader.kill()
        leader.wait()


@pytest.mark.integration
def test_of_a_change_that_takes_several_commands_those_that_come_late_are_not_sent(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    shown = "SLURM_VERSION = 22.05.8\\nBatchHost=n1"
    script = f'echo "$1" >> {sent}; [ "$1 $2" != "show config" ] || sleep 0.2; printf "{shown}\\n"'
    slurm = fenced(command(tmp_path, script), lambda: "", 0.1)
    with pytest.raises(SlurmUnavailable):
        slurm.keep_batch_host(17)
    assert "update" not in sent.read_text()


@pytest.mark.integration
def test_reading_may_take_its_usual_time(tmp_path: Path) -> None:
    slurm = fenced(command(tmp_path, "sleep 0.3; echo ClusterName = c"), lambda: "", 0.1)
    assert slurm.config()["ClusterName"] == "c"
