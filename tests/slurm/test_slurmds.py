"""Slurmds are asked side by side."""

from __future__ import annotations

import threading

from tests import builders as b
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.slurm.slurmds import ask_slurmds


def test_many_are_asked_at_once() -> None:
    """Each takes some 10 ms: five hundred one after the other would take longer than a gang needs to move."""
    everyone = threading.Barrier(32)

    def answers(node: SlurmNode) -> bool:
        everyone.wait(timeout=60)
        return node.name != "n7"

    answered = ask_slurmds([b.slurm_node(f"n{number}") for number in range(32)], answers)
    assert [name for name, one in answered.items() if not one] == ["n7"]
    assert len(answered) == 32
