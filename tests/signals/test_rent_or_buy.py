"""A gang on a slow node moves at once, or when its move pays: through the whole control plane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.signals.virtual_fleet import Fleet, Gang
from understudy_controlplane.fleet.node import NodeState

pytestmark = pytest.mark.integration

START_SECONDS = 240.0


class Slow:
    """A gang of eight ranks on four nodes, of which rank 5 becomes 25 % slower; its GPU shows why."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        names = [f"n{number}" for number in range(1, 9)]
        self.fleet = Fleet(folder, names, 2, spares={"count": 2}, straggler={"move_when_it_pays": wait})
        for _ in range(3):
            self.fleet.tick(1.0)
        self.gang: Gang = self.fleet.submit(4, ranks_per_node=2)
        self.gang.paused_until = self.fleet.now + START_SECONDS
        self.run(START_SECONDS + 250)
        self.fleet.save_checkpoint(self.gang)
        self.run(100)
        self.node = self.gang.nodes[2]
        self.gang.pace[5] = 1.25
        self.fleet.nodes[self.node].set_gpu(1, clock_event_reasons=0x40)
        self.since = self.fleet.now

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            self.fleet.tick(10.0)

    def is_in(self, state: NodeState) -> bool:
        return state is self.fleet.control_plane.stores.fleet.nodes()[self.node].state

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.fleet.decisions(self.since) if one["subject"] == self.node]


@pytest.fixture
def slow(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Slow]:
    made = Slow(tmp_path, wait=request.param)
    yield made
    made.fleet.close()


@pytest.mark.parametrize("slow", [False], indirect=True)
def test_with_the_option_off_it_moves_as_soon_as_the_reason_is_known(slow: Slow) -> None:
    slow.run(200)
    assert slow.is_in(NodeState.QUARANTINED)
    assert "a move costs 2" in slow.reasons()[0], "about the four minutes of its start"


@pytest.mark.parametrize("slow", [True], indirect=True)
def test_by_default_it_waits_until_the_slowness_has_cost_as_much(slow: Slow) -> None:
    slow.run(600)
    assert slow.is_in(NodeState.SUSPECT), slow.reasons()
    slow.run(1000)
    assert slow.is_in(NodeState.SUSPECT), "every fifth second is lost; the start and the steps since cost more"
    slow.fleet.save_checkpoint(slow.gang)
    slow.run(30)
    assert slow.is_in(NodeState.QUARANTINED), "right after its checkpoint"
    assert re.search(r"\b(0|10) s of steps since its last checkpoint", slow.reasons()[-1]), slow.reasons()
