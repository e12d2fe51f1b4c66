"""The gateway of a control plane that may lose the lead."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.fenced import fenced
from understudy_controlplane.slurm.protocol import READS, Slurm, SlurmUnavailable

CHANGES = sorted(
    name for name in vars(Slurm) if not name.startswith("_") and name not in READS and callable(getattr(Slurm, name))
)


def test_each_call_that_changes_something_needs_the_lead() -> None:
    assert "requeue_job" in CHANGES
    slurm = fenced(VirtualSlurm(["n1"]), lambda: "another control plane leads", 2.0)
    for name in CHANGES:
        with pytest.raises(SlurmUnavailable, match=f"{name} was not sent to Slurm: another control plane leads"):
            getattr(slurm, name)()


def test_reading_needs_no_lead() -> None:
    slurm = fenced(VirtualSlurm(["n1"]), lambda: "another control plane leads", 2.0)
    assert [node.name for node in slurm.nodes()] == ["n1"]


def test_the_lead_is_looked_at_before_each_call() -> None:
    """A step may be a loop of calls."""
    answers = iter(["", "the lease is over"])
    virtual = VirtualSlurm(["n1", "n2"])
    slurm = fenced(virtual, lambda: next(answers), 2.0)
    slurm.drain_node("n1", "understudy: test")
    with pytest.raises(SlurmUnavailable):
        slurm.drain_node("n2", "understudy: test")
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
