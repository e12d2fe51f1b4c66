"""GPUs that are moved from node to node, as a control plane sees it over hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.recover.rehearsal import NODES, Rehearsal
from understudy_controlplane.store.queries import Queries

THIS = "GPU-that-moves"


def moves(rehearsal: Rehearsal) -> list[str]:
    """The nodes to which decisions say that this GPU moved, in order."""
    decisions: list[dict[str, Any]] = Queries(rehearsal.engine).decisions(1000)
    return [
        one["subject"] for one in reversed(decisions) if one["rule"].startswith("inventory.") and THIS in one["reason"]
    ]


@pytest.mark.integration
def test_a_gpu_that_comes_back_is_recorded_and_a_node_that_is_off_has_none(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    for name in NODES:  # each its own, or all would be taken for the same ones
        rehearsal.gpus[name] = [b.gpu(i, uuid=f"GPU-{name}-{i}") for i in range(2)]
    rehearsal.gpus["n6"] += [b.gpu(2, uuid=THIS)]
    rehearsal.run(5)
    assert moves(rehearsal) == []

    rehearsal.silent.add("n6")  # off; its last report is still in memory
    rehearsal.run(120)
    rehearsal.gpus["n7"] += [b.gpu(2, uuid=THIS)]
    rehearsal.run(5)
    rehearsal.fake.advance(3600)  # GPUs that stay are recorded hourly
    rehearsal.run(5)
    assert moves(rehearsal) == ["n7"]

    rehearsal.silent.add("n7")
    rehearsal.run(120)
    rehearsal.silent.discard("n6")
    rehearsal.run(5)
    assert moves(rehearsal) == ["n7", "n6"]
