"""A step that is computed again and compared bit for bit, on the CPU; a bit that a test flips stands for a bad GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from understudy import Monitor
from understudy.recompute import EVERY_MIN, Recompute
from understudy_agent.config import Config
from understudy_wire.facts import Anomaly, AnomalyKind

pytestmark = pytest.mark.integration

STEPS = range(5 * EVERY_MIN)


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


@pytest.fixture
def heard(plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """This process as the only rank of a job."""
    for name, value in {"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with running_agent(config):
        monitor = Monitor(socket=str(config.socket))
        yield monitor
        monitor.close()


class Training:
    """A layer with dropout, whose gradients are computed; `flips`: runs that give another bit."""

    def __init__(self, flips: tuple[int, ...] = (), always: bool = False) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
        self.batch = torch.randn(8, 16)
        self.flips = flips
        self.always = always
        self.runs = 0
        self.steps: list[int] = []

    def compute(self) -> list[torch.Tensor]:
        loss = self.model(self.batch).square().mean()
        found = [loss, *torch.autograd.grad(loss, list(self.model.parameters()))]
        self.runs += 1
        if self.always or self.runs in self.flips:
            found[1].view(torch.int32)[0, 0] ^= self.runs
        return found

    def train(self, monitor: Monitor, recompute: Recompute) -> None:
        for number in monitor.steps(STEPS):
            before = self.runs
            recompute.check(self.compute)
            if self.runs > before:
                self.steps.append(number)


def reported(plane: FakeControlPlane) -> list[Anomaly]:
    return [fact for fact in plane.facts if isinstance(fact, Anomaly)]


def test_one_flipped_bit_is_reported_with_its_step(plane: FakeControlPlane, heard: Monitor) -> None:
    training = Training(flips=(4,))  # three runs calibrate, the fourth is the first of the next check
    training.train(heard, Recompute(heard, every=EVERY_MIN))
    plane.wait_for(lambda _: reported(plane))
    heard.close()
    (found,) = reported(plane)
    assert (found.kind, found.step, found.rank) == (AnomalyKind.RECOMPUTE_DIFFERS, EVERY_MIN, 0)
    assert training.steps == list(STEPS)[::EVERY_MIN]


def test_a_deterministic_training_is_not_reported_and_its_random_numbers_go_on_as_without(
    plane: FakeControlPlane, heard: Monitor
) -> None:
    training = Training()
    torch.manual_seed(7)
    training.train(heard, Recompute(heard, every=EVERY_MIN))
    after = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(1))
    assert training.runs == 3 + 2 * 4
    heard.close()
    assert reported(plane) == []


def test_a_program_that_is_not_deterministic_is_not_computed_again(plane: FakeControlPlane, heard: Monitor) -> None:
    training = Training(always=True)
    training.train(heard, Recompute(heard, every=EVERY_MIN))
    heard.close()
    assert training.steps == [0]
    assert reported(plane) == []


def test_replicas_take_turns(heard: Monitor) -> None:
    due = []
    recompute = Recompute(heard, every=EVERY_MIN, replica=1, replicas=3)
    for number in heard.steps(STEPS):
        if recompute.is_due():
            due.append(number)
    assert due == [EVERY_MIN, 4 * EVERY_MIN]


def test_without_an_agent_nothing_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    training = Training()
    training.train(monitor := Monitor(), Recompute(monitor))
    assert training.runs == 0
