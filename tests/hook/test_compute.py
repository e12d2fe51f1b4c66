"""The test of a GPU between steps; here on the CPU, and with events that a test makes up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.hook.training_site import TrainingSite, windows
from understudy import Monitor
from understudy.compute import EVERY_MIN, REPEATS, GpuTimes, watch_compute
from understudy_agent.config import Config
from understudy_controlplane.decide.compute_tests import MULTIPLICATIONS
from understudy_wire.ranks import ComputeTestOrder

pytestmark = pytest.mark.integration


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


def measured(plane: FakeControlPlane) -> dict[int, float]:
    """Step → how long the multiplication took after it."""
    seen = [window.training for window in windows(plane, 0) if window.training is not None]
    return {one.compute_step: one.compute_seconds for one in seen if one.compute_step and one.compute_seconds}


def self_seconds(plane: FakeControlPlane) -> dict[int, float]:
    """Seconds by step."""
    return {
        window.first_step + place: one for window in windows(plane, 0) for place, one in enumerate(window.self_seconds)
    }


def test_it_runs_after_agreed_steps_and_its_time_is_none_of_the_ranks_own(
    plane: FakeControlPlane, heard: Monitor
) -> None:
    test = watch_compute(heard, every=EVERY_MIN, device="cpu")
    assert test is not None
    for _ in heard.steps(range(2 * EVERY_MIN + 3)):
        pass
    test.remove()
    plane.wait_for(lambda plane: 2 * EVERY_MIN in measured(plane) and 2 * EVERY_MIN in self_seconds(plane))
    heard.close()
    assert 0 < (seconds := measured(plane)[2 * EVERY_MIN]) < 1
    assert self_seconds(plane)[2 * EVERY_MIN] < REPEATS * seconds, "steps before may be lost: it is telemetry"


def test_it_runs_after_the_first_step_and_after_one_that_the_control_plane_chooses(
    plane: FakeControlPlane, heard: Monitor
) -> None:
    test = watch_compute(heard, every=10**6, device="cpu")
    assert test is not None
    steps = iter(heard.steps(range(17, 10**6)))
    for _ in range(3):
        next(steps)
    plane.wait_for(lambda plane: set(measured(plane)) == {17})
    chosen = 17 + 2000
    plane.compute_tests = [ComputeTestOrder(7, 0, 0, os.getuid() + other, chosen + 50 * other) for other in (0, 1)]
    deadline = time.monotonic() + 30
    while heard.test_after is None and time.monotonic() < deadline:
        time.sleep(0.01)
    for step in steps:
        if step == chosen + 100:
            break
    plane.wait_for(lambda plane: chosen in measured(plane))
    assert set(measured(plane)) == {17, chosen}, "an order to another user's ranks does not reach this one"


def test_the_control_plane_counts_as_many_multiplications() -> None:
    assert MULTIPLICATIONS == REPEATS


def test_without_an_agent_nothing_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert watch_compute(Monitor()) is None


def test_a_device_that_is_not_there_ends_no_training(heard: Monitor) -> None:
    assert watch_compute(heard, device="cuda:99") is None
    with heard.step(0):
        pass


def test_on_a_gpu_it_is_read_when_it_is_done_and_the_shortest_counts() -> None:
    clock, done = iter([0.0, *(5.0 + 3.0 * n for n in range(REPEATS))]), [False]

    class Event:
        def record(self) -> None:
            self.at = next(clock)

        def query(self) -> bool:
            return done[0]

        def elapsed_time(self, later: Event) -> float:
            return later.at - self.at

    running = GpuTimes(lambda: None, REPEATS, Event)
    assert running.seconds() is None
    done[0] = True
    assert running.seconds() == pytest.approx(0.003)


GANG = """
import os, time
import torch.distributed as dist
from understudy import Monitor
from understudy.compute import watch_compute

dist.init_process_group("gloo")
monitor = Monitor() if os.environ["RANK"] != ALONE else Monitor(socket="/nonexistent")
if os.environ["RANK"] == ALONE:
    monitor.close()
test = watch_compute(monitor, every=EVERY, device="cpu", group=dist.group.WORLD)
assert (test is None) == (os.environ["RANK"] == ALONE)
for step in monitor.steps(range(10**9)):
    time.sleep(0.01)
"""


def summed(plane: FakeControlPlane) -> dict[int, float | None]:
    """Rank → how long its last all-reduce took."""
    seen = [window for window in windows(plane, 0) if window.training is not None and window.training.compute_step]
    return {window.rank: window.training.all_reduce_seconds for window in seen if window.training}


def test_ranks_of_a_group_do_an_all_reduce_after_the_same_steps(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    script = GANG.replace("ALONE", "'none'").replace("EVERY", "10")
    with running_agent(config), TrainingSite(tmp_path).training(script, 4, config.socket):
        plane.wait_for(lambda plane: len(summed(plane)) == 4)
    assert all(seconds is not None and 0 < seconds < 5 for seconds in summed(plane).values())


def test_where_a_rank_cannot_take_part_none_waits_for_it(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    script = GANG.replace("ALONE", "'1'").replace("EVERY", "10")
    with running_agent(config), TrainingSite(tmp_path).training(script, 3, config.socket):
        plane.wait_for(lambda plane: len(summed(plane)) == 2)
    assert set(summed(plane).values()) == {None}, "their GPUs are tested, each by itself"


def test_ranks_that_would_do_it_after_other_steps_do_none(
    plane: FakeControlPlane, config: Config, tmp_path: Path
) -> None:
    script = GANG.replace("ALONE", "'none'").replace("EVERY", "10 + int(os.environ['RANK'])")
    with running_agent(config), TrainingSite(tmp_path).training(script, 2, config.socket):
        plane.wait_for(lambda plane: len(summed(plane)) == 2)
    assert set(summed(plane).values()) == {None}
