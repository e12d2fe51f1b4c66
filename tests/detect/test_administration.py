"""Drains that other tools made: named with their tool, and left alone."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.detect.administration import administration
from understudy_controlplane.fleet.custody import Holder, Proof, in_slurm, kept_down, meaning
from understudy_controlplane.fleet.finding import Signal


@pytest.mark.parametrize("user", ["root", "slurm", "soperator"])
@pytest.mark.parametrize(
    ("reason", "tool"),
    [
        # csc_nvidia_smi.nhc and lbnl_hw.nhc of mej/nhc, behind the word of helpers/node-mark-offline
        ("NHC: check_nvsmi_healthmon:  nvidia-healthmon:  The GPU has fallen off the bus", "nhc"),
        ('NHC: Script timed out while executing "check_fs_mount_rw -t nfs".', "nhc"),
        # check_runner.py and internal/consts/slurm.go of nebius/soperator
        ("[node_problem] gpu_health_check: xid [prolog]", "soperator"),
        ("[user_problem] alloc_gpus_busy: process 4711 [epilog]", "soperator"),
        ("[hardware_problem] extensive-check failed", "soperator"),
        ("[compute_maintenance] node replacement process", "soperator"),
        ("slurm-operator: Pod is terminating", "slinky"),
        ("bad cable", "foreign_drain"),
        ("no NHC: it is mine", "foreign_drain"),
    ],
)
def test_a_drain_of_another_tool_is_named_and_never_lifted(reason: str, tool: str, user: str) -> None:
    for state in ("IDLE", "DOWN"):
        slurm = b.slurm_node("n1", state, ["DRAIN"], reason, user)
        (found,) = administration(b.snapshot(b.node("n1", slurm=slurm)))
        assert (found.signal, found.rule) == (Signal.DRAINED_BY_OTHERS, f"administration.{tool}")
        assert reason in found.summary
        held = in_slurm(slurm)
        assert (held.holder, held.proven_by, kept_down(slurm)) == (Holder.ADMINISTRATOR, Proof.REASON, False)
        assert meaning(f"{reason} : Not responding", user) is None, "what Slurm adds does not make it Slurm's"
