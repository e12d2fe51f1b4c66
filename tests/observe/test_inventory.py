"""GPUs that are moved from node to node, as a control plane sees it over hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import builders as b
from tests.recover.rehearsal import NODES, Rehearsal
from understudy_controlplane.fleet.gpu import MovedGpu, Replacement
from understudy_controlplane.observe.inventory import Inventory
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.queries import Queries
from understudy_wire.hardware import Gpu

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


class Gpus:
    """Its first reading of what is `failing` fails, as where the database is restarted."""

    def __init__(self, failing: str) -> None:
        self.failing = failing

    def known_replacements(self) -> tuple[dict[str, Replacement], frozenset[str]]:
        return {}, frozenset({"n1"})

    def replacements(self, seen: Mapping[str, Sequence[Gpu]], now: float) -> dict[str, Replacement]:
        self._fail("replacements")
        return {name: Replacement(1.0, now) for name in seen}

    def moved_gpus(self, seen: Mapping[str, Sequence[Gpu]]) -> list[MovedGpu]:  # noqa: ARG002 - the protocol's
        self._fail("moved_gpus")
        return []

    def _fail(self, reading: str) -> None:
        if reading == self.failing:
            self.failing = ""
            raise StoreError("the connection is closed")


@pytest.mark.parametrize("failing", ["replacements", "moved_gpus"])
def test_a_node_counts_as_seen_only_once_the_database_was_asked_about_it(failing: str) -> None:
    """It may be another machine by now."""
    inventory = Inventory(Gpus(failing))
    heard = {"n1": b.heard(b.report("n1", gpus=[b.gpu(0)]), b.NOW)}
    with pytest.raises(StoreError):
        inventory.look(heard, b.NOW)
    assert inventory.unseen == {"n1"}
    assert list(inventory.look(heard, b.NOW + 1)) == ["n1"]
    assert not inventory.unseen
    assert inventory.replacements == {"n1": Replacement(1.0, b.NOW + 1)}
    assert not inventory.look(heard, b.NOW + 2)
