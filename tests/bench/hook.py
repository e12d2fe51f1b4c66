"""What the hook costs the training: processor time of its thread for a step, with an agent that receives its messages.

The training is a loop that does nothing, as fast as it goes; so the link's thread has more to do than it ever has, and
contends for the interpreter. `bare` is the same loop without the hook, taken off. `cold` is a step after a pause, when
the processor has forgotten all of this, as it has in a real training. `watched_backward` is what watch_ddp() adds to a
backward pass; without DDP's own work in it, which varies by more than that.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.bench.processor import seconds_of
from tests.bench.result import Result, Size, result
from tests.stopwatch import reference
from understudy import Monitor
from understudy.ddp import watch_ddp

ROUNDS = 15
STEPS = 2_000
BACKWARDS = 1_000
COLD_STEPS = 400
RANK = {"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"}


def microseconds(loop: Callable[[range], None], size: Size) -> list[float]:
    """Microseconds of one step, each round."""
    rounds, count = [], size.of(STEPS, 50)
    for number in range(size.of(ROUNDS, 2)):
        steps = range(number * count, (number + 1) * count)
        begun = time.thread_time()
        loop(steps)
        rounds.append((time.thread_time() - begun) / count * 1e6)
        time.sleep(0.3)  # the link's thread sends what has gathered
    return rounds


def bare(steps: range) -> None:
    for _ in steps:
        pass


def plain(monitor: Monitor) -> Callable[[range], None]:
    def loop(steps: range) -> None:
        for _ in monitor.steps(steps):
            pass

    return loop


def cold(monitor: Monitor, size: Size) -> list[float]:
    """Microseconds of one step, each step: entering and leaving it."""
    costs = []
    for n in range(size.of(COLD_STEPS, 10)):
        time.sleep(0.002)
        begun = time.perf_counter()
        step = monitor.step(n)
        step.__enter__()
        entered = time.perf_counter()
        time.sleep(0.002)
        leaving = time.perf_counter()
        step.__exit__(None, None, None)
        costs.append((time.perf_counter() - leaving + entered - begun) * 1e6)
    return costs


def with_collectives(monitor: Monitor) -> Callable[[range], None]:
    def loop(steps: range) -> None:
        for _ in monitor.steps(steps):
            for _ in range(4):
                with monitor.collective("all_reduce"):
                    pass

    return loop


def measure_steps(monitor: Monitor, closed: Monitor, size: Size) -> list[Result]:
    empty = median(microseconds(bare, size))
    figures = {
        "hook_step": plain(monitor),
        "hook_step_four_collectives": with_collectives(monitor),
        "hook_step_no_agent": plain(closed),
    }
    beside = [seconds_of(reference) * 1e6 for _ in range(size.of(ROUNDS, 2))]
    hot = [
        result(
            name, "µs", [one - empty for one in microseconds(loop, size)], {"fixed_work": beside}, more_is_better=False
        )
        for name, loop in figures.items()
    ]
    return [*hot, result("hook_step_cold", "µs", cold(monitor, size), {}, more_is_better=False, rounds=False)]


def measure_backward(monitor: Monitor, size: Size) -> Result:
    count = size.of(BACKWARDS, 10)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    inputs = torch.randn(4, 64)

    def train() -> None:
        model(inputs).sum().backward()

    median_backward(train, count)
    added = []
    for _ in range(size.of(ROUNDS, 2)):  # side by side, because a backward pass takes now this long and now that
        without = median_backward(train, count)
        watch = watch_ddp(monitor, model)
        added.append(median_backward(train, count) - without)
        watch.remove()
    return result("hook_watched_backward", "µs", added, {}, more_is_better=False)


def median_backward(train: Callable[[], None], count: int) -> float:
    """Microseconds."""
    took = []
    for _ in range(count):
        begun = time.thread_time()
        train()
        took.append((time.thread_time() - begun) * 1e6)
    return median(took)


def measure(size: Size) -> list[Result]:
    outside = Monitor()  # no rank of a job
    os.environ |= RANK
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name, FakeControlPlane() as plane:
        directory = Path(name)
        config = agent_config(directory, plane.url)
        with running_agent(config):
            monitor = Monitor(socket=str(config.socket))
            plane.wait_for(lambda plane: plane.facts)
            results = [*measure_steps(monitor, outside, size), measure_backward(monitor, size)]
            monitor.close()
        assert any(window.self_seconds for report in plane.reports for window in report.ranks), (
            "no step times were reported"
        )
    return results
