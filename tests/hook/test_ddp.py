"""Two real ranks over gloo: whose time is whose, and what is seen of a hang."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import TrainingSite, windows
from understudy import Monitor
from understudy.ddp import GRADIENTS, PENDING_MAX, _GpuWait, watch_collectives, watch_ddp
from understudy_agent.config import Config
from understudy_wire.ranks import Collective

pytestmark = pytest.mark.integration

SCRIPT = """
import sys, time
from understudy import Monitor
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from understudy.ddp import watch_ddp

monitor = Monitor()
dist.init_process_group("gloo")
rank = dist.get_rank()
STEPS = 20

def train(watched, seconds=0.0, hook=False, unused=False, stop_at=None):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    if unused:
        module.add_module("2b", torch.nn.Linear(3, 3))
        module.forward = lambda x: module[2](module[1](module[0](x)))
    model = DistributedDataParallel(module, find_unused_parameters=unused, bucket_cap_mb=0.001)
    if hook:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    if watched:
        watch_ddp(monitor, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for n in monitor.steps(range(STEPS)) if watched else range(STEPS):
        if n == stop_at and rank == 1:
            time.sleep(1000)
        time.sleep(seconds * rank)
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(2 * n + rank))
        with model.no_sync():
            model(inputs).square().mean().backward()
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([one.detach().flatten() for one in module.parameters()])

"""

SLOW_SECONDS = 0.05


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture
def config(tmp_path: Path, plane: FakeControlPlane) -> Config:
    return agent_config(tmp_path, plane.url)


def median_seconds(plane: FakeControlPlane, rank: int) -> tuple[float, float]:
    """Own time of a step, and its duration."""
    mine = [window for window in windows(plane, 0) if window.rank == rank]
    own = statistics.median(seconds for window in mine for seconds in window.self_seconds)
    return own, statistics.median(seconds for window in mine for seconds in window.wall_seconds)


def test_the_rank_that_the_others_wait_for_shows_in_its_own_time(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    with running_agent(config):
        TrainingSite(tmp_path).train(f"{SCRIPT}train(True, {SLOW_SECONDS})\nmonitor.close()\n", 2, config.socket)
        plane.wait_for(lambda plane: len(windows(plane, 0)) >= 2)
    (own, wall), (own_of_slow, wall_of_slow) = median_seconds(plane, 0), median_seconds(plane, 1)
    assert wall > SLOW_SECONDS
    assert wall_of_slow > SLOW_SECONDS
    assert own < SLOW_SECONDS / 2
    assert own_of_slow > SLOW_SECONDS


TRANSFERS = f"""
import time
from understudy import Monitor
import torch, torch.distributed as dist
from understudy.ddp import watch_collectives

monitor = Monitor()
dist.init_process_group("gloo")
value = torch.ones(4)
with watch_collectives(monitor):
    for n in monitor.steps(range(8)):
        if dist.get_rank() == 0:
            time.sleep({SLOW_SECONDS})
            dist.send(value, 1) if n % 2 else dist.send(value, dst=1)
        else:
            dist.recv(value, 0) if n % 2 else dist.recv(tensor=value, src=0)
            assert dist.recv.__name__ == "recv"
        dist.barrier()
monitor.close()
"""


def test_who_waits_for_a_peer_shows_in_the_transfers_with_it(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    with running_agent(config):
        TrainingSite(tmp_path).train(TRANSFERS, 2, config.socket)
        plane.wait_for(lambda plane: {window.rank for window in windows(plane, 0) if window.transfers} == {0, 1})
    seconds: dict[tuple[int, int], list[float]] = {}
    for window in windows(plane, 0):
        for one in window.transfers:
            seconds.setdefault((window.rank, one.peer), []).extend(one.seconds)
    assert seconds.keys() == {(0, 1), (1, 0)}
    assert statistics.median(seconds[1, 0]) > SLOW_SECONDS / 2
    assert statistics.median(seconds[0, 1]) < SLOW_SECONDS / 2
    assert median_seconds(plane, 1)[0] < SLOW_SECONDS / 2, "it is none of its own time"


def test_gradients_are_to_the_last_bit_what_they_are_without_the_watch(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    check = "".join(
        f"assert torch.equal(train(True, **{options}), train(False, **{options})), {options}\n"
        for options in ({}, {"hook": "fp16_compress_hook"}, {"hook": "allreduce_hook"}, {"unused": True})
    )
    with running_agent(config):
        TrainingSite(tmp_path).train(SCRIPT + check, 2, config.socket)


def test_a_rank_that_hangs_shows_in_the_collective_that_it_never_entered(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    def last(rank: int) -> Collective | None:
        reported = [window.collective for window in windows(plane, 0) if window.rank == rank and window.collective]
        return reported[-1] if reported else None

    def hangs(_: FakeControlPlane) -> bool:
        waiting, missing = last(0), last(1)
        return waiting is not None and missing is not None and waiting.inside and waiting.sequence > missing.sequence

    with running_agent(config), TrainingSite(tmp_path).training(f"{SCRIPT}train(True, stop_at=10)\n", 2, config.socket):
        plane.wait_for(hangs, timeout_seconds=60)
        reported_before = len([window for window in windows(plane, 0) if window.collective == last(0)])
        # It is reported again unchanged, in case a report was lost.
        plane.wait_for(
            lambda plane: len([one for one in windows(plane, 0) if one.collective == last(0)]) > reported_before,
            timeout_seconds=10,
        )
    waiting, missing = last(0), last(1)
    assert waiting is not None
    assert missing is not None
    assert (waiting.name, waiting.step, waiting.inside) == (GRADIENTS, 10, True)
    # The first of the two backward passes of a step is without a reduction, and no collective.
    assert (missing.step, missing.inside, missing.sequence) == (9, False, waiting.sequence - 1)


@pytest.fixture
def heard(plane: FakeControlPlane, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """This process as the only rank of a job."""
    for name, value in {"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with running_agent(config):
        monitor = Monitor(socket=str(config.socket))
        yield monitor
        monitor.close()


class Gpu:
    """Makes events as torch.cuda.Event, on a clock that the test turns."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done_ms = 0.0
        """Until where the GPU has come with what it was given."""
        self.events_made = 0
        self.capturing = False

    def event(self) -> Event:
        assert not self.capturing, "no event may be made while a graph is captured"
        self.events_made += 1
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def record(self) -> None:
        self.at_ms = self._gpu.now_ms

    def query(self) -> bool:
        return self.at_ms <= self._gpu.done_ms

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


class Listener:
    """What a _GpuWait reports to a Monitor."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.entered = 0
        self.left = 0

    def watch(self, settle: Callable[[], None]) -> None:
        self.settle = settle

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def note_entered(self, name: str) -> None:
        assert name == GRADIENTS
        self.entered += 1

    def note_left(self) -> None:
        self.left += 1


class GpuStage:
    def __init__(self) -> None:
        self.gpu = Gpu()
        self.reported = Listener()
        self.wait = _GpuWait(cast(Monitor, self.reported), self.gpu.event, lambda: self.gpu.capturing)

    def backward(self, waiting_ms: float) -> None:
        self.wait.begin()
        self.gpu.now_ms += waiting_ms
        self.wait.end()


def test_on_a_gpu_waiting_counts_at_the_end_of_the_step_in_which_the_gpu_is_done_with_it() -> None:
    stage = GpuStage()
    stage.backward(300.0)
    stage.reported.settle()
    assert stage.reported.waits == []
    assert (stage.reported.entered, stage.reported.left) == (1, 0)
    stage.gpu.done_ms = stage.gpu.now_ms
    stage.backward(500.0)
    stage.reported.settle()
    assert stage.reported.waits == [0.3]
    stage.gpu.done_ms = stage.gpu.now_ms
    stage.reported.settle()
    assert stage.reported.waits == [0.3, 0.5]
    assert (stage.reported.entered, stage.reported.left) == (2, 2)
    stage.backward(1.0)
    assert stage.gpu.events_made == 4  # used again


def test_a_gpu_that_never_answers_leaves_a_bounded_pile() -> None:
    stage = GpuStage()
    stage.gpu.now_ms = 1.0
    for _ in range(3 * PENDING_MAX):
        stage.backward(1.0)
    stage.reported.settle()
    assert stage.reported.waits == []
    assert stage.reported.entered - stage.reported.left == PENDING_MAX


def test_a_backward_pass_that_failed_on_a_gpu_is_not_measured() -> None:
    stage = GpuStage()
    stage.wait.begin()
    stage.backward(7.0)
    stage.gpu.done_ms = stage.gpu.now_ms
    stage.reported.settle()
    assert stage.reported.waits == [0.007]
    assert (stage.reported.entered, stage.reported.left) == (2, 2)


def test_nothing_is_recorded_into_a_cuda_graph() -> None:
    stage = GpuStage()
    stage.gpu.capturing = True
    stage.backward(1.0)
    stage.reported.settle()
    assert (stage.reported.entered, stage.reported.waits) == (0, [])


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_collectives_are_noted_within_and_let_go_after(heard: Monitor, plane: FakeControlPlane, one_rank: None) -> None:
    before: Callable[..., object] = dist.all_reduce
    with watch_collectives(heard), heard.step(3):
        dist.barrier()
        value = torch.ones(2)
        dist.all_reduce(value)
    assert dist.all_reduce is before
    plane.wait_for(lambda plane: any(window.collective for window in windows(plane, 0)))
    heard.close()
    reported = [window.collective for window in windows(plane, 0) if window.collective][-1]
    assert (reported.name, reported.sequence, reported.step, reported.inside) == ("all_reduce", 2, 3, False)


def test_a_model_is_not_watched_without_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    model = torch.nn.Linear(2, 2)
    before = dist.all_reduce
    watch_ddp(Monitor(), model)
    assert not model.weight._backward_hooks
    with watch_collectives(Monitor()):
        assert dist.all_reduce is before
