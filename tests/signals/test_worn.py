"""A GPU whose memory wears out, through the whole control plane: recorded, or left at the gang's next checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.signals.virtual_fleet import Fleet
from understudy_controlplane.fleet.node import NodeState

pytestmark = pytest.mark.integration

HOUR = 3600.0


class Worn:
    """A gang of four nodes. Corrected errors of one of its GPUs grow, from the third day on 25 times as fast."""

    def __init__(self, folder: Path, *, leave: bool) -> None:
        names = [f"n{number}" for number in range(1, 8)]
        self.fleet = Fleet(folder, names, 1, 600.0, spares={"count": 2}, hardware={"leave_worn": leave})
        for _ in range(3):
            self.fleet.tick(1.0)
        self.gang = self.fleet.submit(4, ranks_per_node=1, step_seconds=70.0)
        self.gang.paused_until = self.fleet.now + 60.0
        self.node = self.gang.nodes[1]
        for _ in range(20):
            self.fleet.tick(10.0)
        corrected = 0
        for hour in range(68):
            corrected += 10 if hour < 48 else 250
            self.fleet.nodes[self.node].set_gpu(0, ecc_corrected=corrected)
            if hour % 2:
                self.save()
            self.fleet.tick(HOUR - 10)

    def save(self) -> None:
        self.fleet.save_checkpoint(self.gang)
        for _ in range(2):
            self.fleet.tick(5.0)

    def is_in(self, state: NodeState) -> bool:
        return state is self.fleet.control_plane.stores.fleet.nodes()[self.node].state

    def decisions(self) -> list[str]:
        return [one["rule"] for one in self.fleet.decisions(0.0) if one["subject"] == self.node]


@pytest.fixture
def worn(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worn]:
    made = Worn(tmp_path, leave=request.param)
    yield made
    made.fleet.close()


@pytest.mark.parametrize("worn", [False], indirect=True)
def test_by_default_it_is_recorded(worn: Worn) -> None:
    worn.save()
    assert worn.is_in(NodeState.IN_SERVICE)
    assert "memory.wear" in worn.decisions()


@pytest.mark.parametrize("worn", [True], indirect=True)
def test_with_the_setting_the_gang_leaves_it_right_after_a_checkpoint(worn: Worn) -> None:
    [out] = [one for one in worn.fleet.decisions(0.0) if one["to_state"] == NodeState.QUARANTINED.value]
    assert (out["subject"], out["rule"]) == (worn.node, "memory.wear")
    assert worn.is_in(NodeState.QUARANTINED)
    assert "pays" in str(out["evidence"]), out
