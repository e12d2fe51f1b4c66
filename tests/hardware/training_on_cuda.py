"""What the hook's own work costs a training on this process's GPU: the test of the GPU between steps, and a step that
is computed again; and that a bit which the GPU computes otherwise is reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from tests.agent.fake_control_plane import FakeControlPlane
from tests.hardware.monitored import monitored
from understudy.compute import EVERY_MIN, watch_compute
from understudy.recompute import CALIBRATION_RUNS, Recompute
from understudy_wire.facts import Anomaly

STEPS = 10 * EVERY_MIN
WIDTH, LAYERS, BATCH = 4096, 4, 4096


class Training:
    """Layers with dropout in BF16, whose loss and gradients are computed; run `flip` gives one other bit."""

    def __init__(self, flip: int = 0) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1)) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
        self.batch = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.flip = flip
        self.runs = 0

    def compute(self) -> list[torch.Tensor]:
        loss = self.model(self.batch).float().square().mean()
        found = [loss, *torch.autograd.grad(loss, list(self.model.parameters()))]
        self.runs += 1
        if self.runs == self.flip:
            found[1].view(torch.int16)[0, 0] ^= 1
        return found


def milliseconds(do: Callable[[], object], times: int = 10) -> float:
    """Milliseconds by events of the GPU."""
    event: Any = torch.cuda.Event  # without types
    taken = []
    for _ in range(times):
        begun, ended = event(enable_timing=True), event(enable_timing=True)
        begun.record()
        do()
        ended.record()
        torch.cuda.synchronize()
        taken.append(float(begun.elapsed_time(ended)))
    return median(taken)


def tested_between_steps() -> dict[str, float]:
    """What a step with the test takes more than one without, and what is reported of the multiplication."""
    training = Training()
    training.compute()
    with monitored() as (plane, monitor):
        test = watch_compute(monitor, every=EVERY_MIN)
        assert test is not None
        event: Any = torch.cuda.Event
        begins = [event(enable_timing=True) for _ in range(STEPS)]
        for number in monitor.steps(range(STEPS)):
            begins[number].record()
            training.compute()
        torch.cuda.synchronize()
        test.remove()
        plane.wait_for(_compute_seconds)
        multiplication = min(_compute_seconds(plane))
    taken = [float(one.elapsed_time(following)) for one, following in pairwise(begins)]
    bare = median(one for number, one in enumerate(taken) if number % EVERY_MIN)
    return {
        "step_milliseconds": round(bare, 2),
        "more_milliseconds": round(median(taken[::EVERY_MIN]) - bare, 2),
        "multiplication_milliseconds": round(1000 * multiplication, 3),
    }


def _compute_seconds(plane: FakeControlPlane) -> list[float]:
    seen = [window.training for report in plane.reports for window in report.ranks]
    return [one.compute_seconds for one in seen if one is not None and one.compute_seconds]


def computed_again(flip: int) -> dict[str, float | bool]:
    training = Training(flip)
    with monitored() as (plane, monitor):
        recompute = Recompute(monitor, every=EVERY_MIN)
        alone = milliseconds(training.compute) if not flip else 0.0
        training.runs = 0
        for _ in monitor.steps(range(STEPS)):
            recompute.check(training.compute)
        monitor.close()
        found = any(isinstance(fact, Anomaly) for fact in plane.facts)
    same = training.runs > CALIBRATION_RUNS  # else it was given up
    return {"runs": training.runs, "same": same, "reported": found, "step_milliseconds": round(alone, 2)}


def main() -> None:
    found = {
        "between_steps": tested_between_steps(),
        "again": computed_again(0),
        "again_with_a_flipped_bit": computed_again(4),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
