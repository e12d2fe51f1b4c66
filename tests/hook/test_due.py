"""When to save, with real ranks, a real agent and the control plane's own part of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import JOB, LIGHTNING_MODULE, TrainingSite, shards
from understudy_agent.config import Config
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.saving import SaveCause, WantedSave
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_wire.facts import CheckpointDeleted, CheckpointShard, Layout
from understudy_wire.messages import Report
from understudy_wire.ranks import OrderState, SaveOrder

pytestmark = [pytest.mark.integration, pytest.mark.patient]

WORLD = 3
STEPS_AHEAD = 400
EVERY = 50

TRAIN = """
import os, sys, time
from pathlib import Path
from understudy import Monitor

folder = Path(sys.argv[1])
monitor = Monitor()
assert monitor._link.connected.wait(30)
rank = int(os.environ["RANK"])
step = 0
with (folder / f"saved-{rank}").open("w", buffering=1) as saved:
    while not (folder / "end").exists():
        step += 1
        time.sleep(0.004)
        (folder / f"at-{rank}").write_text(str(step)) if step % 20 == 0 else None
        if monitor.checkpoints.due(step, every=1_000_000):
            path = folder / f"step-{step}"
            path.mkdir(exist_ok=True)
            with monitor.checkpoints.begin(step, path, layout="reshardable") as save:
                (path / f"shard-{rank}").write_bytes(b"12345")
                save.shard(f"shard-{rank}")
            print(step, file=saved)
monitor.close()
"""


class Orders:
    """The control plane's part: what ranks report, and what they are answered."""

    def __init__(self, plane: FakeControlPlane) -> None:
        self.live = SaveOrders()
        plane.save_orders = self._answer

    def _answer(self, report: Report) -> list[SaveOrder]:
        self.live.receive(report.ranks, time.time())
        return self.live.answer_to(report.ranks)

    def state(self) -> OrderState | None:
        order = self.live.gangs()[JOB].order
        return None if order is None else order.state


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def saved(site: TrainingSite, rank: int) -> list[int]:
    path = site.checkpoints / f"saved-{rank}"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [int(line) for line in whole.split()]


def test_all_ranks_save_before_the_ordered_steps_also_while_no_control_plane_answers(
    tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site, orders = TrainingSite(tmp_path), Orders(plane)
    with running_agent(config), site.training(TRAIN, WORLD, config.socket):
        wait(lambda: JOB in orders.live.gangs() and orders.live.gangs()[JOB].is_whole)
        step = orders.live.gangs()[JOB].asked + STEPS_AHEAD
        assert orders.live.propose(
            WantedSave(JobKey("c", JOB, 1), step, EVERY, SaveCause.REQUEST, "now", 1), time.time()
        )
        wait(lambda: orders.state() is OrderState.VALID)
        wait(lambda: all(f"shard-{rank}" in names(site, step) for rank in range(WORLD)))
        plane.wait_for(lambda plane: len(shards(plane, 0, step)) == WORLD)
        plane.stop()
        wait(lambda: all(step + 2 * EVERY in saved(site, rank) for rank in range(WORLD)))
        (site.checkpoints / "end").touch()
        wait(lambda: all(int((site.checkpoints / f"at-{rank}").read_text() or 0) > step for rank in range(WORLD)))
    for rank in range(WORLD):
        ordered = [one for one in saved(site, rank) if one >= step][:3]
        assert ordered == [step, step + EVERY, step + 2 * EVERY]
        assert all(one % 1_000_000 == 0 for one in saved(site, rank) if one < step)
    first = shards(plane, 0, step)[0]
    assert first.layout is Layout.RESHARDABLE
    assert 0 < (first.blocked_seconds or 0) <= (first.write_seconds or 0)


def names(site: TrainingSite, step: int) -> set[str]:
    folder = site.checkpoints / f"step-{step}"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_an_agent_that_restarts_meanwhile_changes_nothing(
    tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site, orders = TrainingSite(tmp_path), Orders(plane)
    with site.training(TRAIN, 2, config.socket):
        with running_agent(config):
            wait(lambda: JOB in orders.live.gangs() and orders.live.gangs()[JOB].is_whole)
            step = orders.live.gangs()[JOB].asked + 2 * STEPS_AHEAD
            wanted = WantedSave(JobKey("c", JOB, 1), step, 0, SaveCause.REQUEST, "now", 1)
            assert orders.live.propose(wanted, time.time())
            wait(lambda: orders.state() is OrderState.VALID)
        with running_agent(config):
            wait(lambda: all(step in saved(site, rank) for rank in range(2)))
            wait(lambda: orders.live.gangs()[JOB].settled)


def test_a_training_that_does_not_ask_is_ordered_nothing(
    tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site, orders = TrainingSite(tmp_path), Orders(plane)
    with running_agent(config):
        site.train("from understudy import Monitor\nm = Monitor()\nwith m.step(1): pass\nm.close()\n", 1, config.socket)
    assert orders.live.gangs() == {}


TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from understudy.huggingface import UnderstudyCallback

output = sys.argv[1]
tokens = torch.randint(64, (64, 8))
arguments = TrainingArguments(
    output, max_steps=1000000, save_steps=OWN, save_total_limit=3, per_device_train_batch_size=1, use_cpu=True,
    report_to=[], disable_tqdm=True, logging_strategy="no",
)
Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
    arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[UnderstudyCallback()],
).train()
"""

LIGHTNING = f"""
{LIGHTNING_MODULE}
import sys
from lightning.pytorch.plugins import AsyncCheckpointIO


Trainer(
    max_steps=1000000, callbacks=[UnderstudyCallback(save_to=sys.argv[1], every=OWN, keep=3)], strategy="ddp",
    accelerator="cpu", devices=2, num_nodes=1, logger=False, enable_progress_bar=False, plugins=[AsyncCheckpointIO()],
    enable_checkpointing=False,
).fit(Sum(), torch.utils.data.DataLoader(torch.randn(100000, 4), batch_size=1))
"""

OWN, OTHER = 60, 25
"""Steps between checkpoints by the training's own code, and as ordered."""


@pytest.mark.long
@pytest.mark.timeout(900)  # their steps take a thousand times as long where this test gives way to all others
@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["huggingface", "lightning"])
def test_trainers_save_before_the_ordered_steps_and_before_their_own(
    script: str, tmp_path: Path, plane: FakeControlPlane, config: Config
) -> None:
    site, orders = TrainingSite(tmp_path), Orders(plane)
    plane.restore_points[JOB, 0] = (0, "")
    with running_agent(config), site.training(script.replace("OWN", str(OWN)), 2, config.socket):
        wait(lambda: JOB in orders.live.gangs() and orders.live.gangs()[JOB].is_whole)
        step = (orders.live.gangs()[JOB].asked + STEPS_AHEAD) // OWN * OWN + 7
        wanted = WantedSave(JobKey("c", JOB, 1), step, OTHER, SaveCause.REQUEST, "now", 1)
        assert orders.live.propose(wanted, time.time())
        wait(lambda: orders.state() is OrderState.VALID)
        last = step + 3 * OTHER
        plane.wait_for(lambda plane: len(shards(plane, 0, last)) == 2, 600)
        plane.wait_for(lambda plane: any(isinstance(fact, CheckpointDeleted) for fact in plane.facts), 200)
    announced = sorted({fact.step for fact in plane.facts if isinstance(fact, CheckpointShard)})
    own = [one for one in range(step, last + 1) if one % OWN == 0]
    assert [one for one in announced if step <= one <= last] == sorted({*own, *(step + n * OTHER for n in range(4))})
    assert all(one % OWN == 0 for one in announced if one < step)
    first, second = shards(plane, 0, step)
    assert first.layout is Layout.RESHARDABLE
    assert 0 < (first.blocked_seconds or 0) <= (first.write_seconds or 0)
    assert (first.path, first.size_bytes > 0) == (second.path, True)
