"""What a step of a training on this process's GPU costs with the hook and without it, and which GPU the hook names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from tests.hardware.monitored import monitored
from understudy.gpu import gpu_uuid

STEPS, ROUNDS, SIZE = 200, 5, 1024


def microseconds(steps: Iterable[int], matrix: Any) -> float:
    """Microseconds of one step, by events of the GPU: what delays its work counts, too."""
    event: Any = torch.cuda.Event  # without types
    begun, ended = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    begun.record()
    for _ in steps:
        matrix @ matrix
    ended.record()
    torch.cuda.synchronize()
    return float(begun.elapsed_time(ended)) * 1000 / STEPS


def main() -> None:
    matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    microseconds(range(STEPS), matrix)  # warm
    with monitored() as (_, monitor):
        rounds = [range(number * STEPS, (number + 1) * STEPS) for number in range(ROUNDS)]
        bare = median(microseconds(steps, matrix) for steps in rounds)
        hooked = median(microseconds(monitor.steps(steps), matrix) for steps in rounds)
    found = {"uuid": gpu_uuid(os.environ), "microseconds": round(hooked - bare, 2), "bare_microseconds": round(bare, 2)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
