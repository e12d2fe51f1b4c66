"""A rank of a gang that needs nothing but Python: `python3 ranks.py DIRECTORY STEPS [due]`.

It "trains" a number, reports through the hook, writes a checkpoint every ten steps, or with `due` when the control
plane orders one, and continues from its restore point. A file `stall-RANK` names launches in which that rank stops; a
file `lacks-NODE` makes a package missing on that node; a file `steps` replaces STEPS, so that a test whose job must
still run does not depend on the machine's speed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

from understudy import Monitor

STEP_SECONDS = 0.03
CHECKPOINT_EVERY = 10


def weight_after(steps: int) -> int:
    """What training for so many steps comes to, faults or none."""
    weight = 1
    for step in range(steps):
        weight = (weight * 31 + step) % 1_000_003
    return weight


def main() -> None:
    began = time.time()
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    rank = int(os.environ["SLURM_PROCID"])
    if (directory / f"lacks-{os.environ.get('SLURMD_NODENAME')}").exists():
        importlib.import_module("flash_attention_of_the_site")
    monitor = Monitor()
    point = monitor.restore_point(timeout_seconds=30)
    weight = int((Path(point.path) / f"rank-{rank}").read_text()) if point.path else 1
    with (directory / f"attempts-{rank}").open("a") as log:
        attempt, launch = (os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "UNDERSTUDY_LAUNCH"))
        about = {"attempt": attempt, "launch": launch, "node": os.environ.get("SLURMD_NODENAME"), "at": began}
        log.write(json.dumps({**about, "from": point.step}) + "\n")
    step = point.step
    while step < steps_of(directory / "steps", steps):
        stall(directory / f"stall-{rank}")
        with monitor.step(step):
            weight = (weight * 31 + step) % 1_000_003
            time.sleep(STEP_SECONDS)
        step += 1
        if is_due(monitor, step):
            save(monitor, directory / f"checkpoint-{step}", rank, step, weight)
            with monitor.collective("wait_for_all"):
                wait_for_all(directory / f"checkpoint-{step}")
    (directory / f"weight-{rank}").write_text(str(weight))
    monitor.close()


def steps_of(file: Path, otherwise: int) -> int:
    return int(file.read_text()) if file.exists() else otherwise


def is_due(monitor: Monitor, step: int) -> bool:
    return monitor.checkpoints.due(step) if "due" in sys.argv[3:] else step % CHECKPOINT_EVERY == 0


def stall(launches: Path) -> None:
    """Stalls like a rank that never comes to the collective in which the others wait."""
    while launches.exists() and os.environ.get("UNDERSTUDY_LAUNCH", "0") in launches.read_text().split():
        time.sleep(0.05)


def wait_for_all(checkpoint: Path) -> None:
    """Waits like a collective: no rank goes on without the others."""
    while len(list(checkpoint.iterdir())) < int(os.environ["SLURM_NTASKS"]):
        time.sleep(0.005)


def save(monitor: Monitor, directory: Path, rank: int, step: int, weight: int) -> None:
    directory.mkdir(exist_ok=True)
    partial = directory.parent / f".rank-{rank}"
    partial.write_text(str(weight))
    partial.rename(directory / f"rank-{rank}")
    monitor.checkpoint_saved(step, directory, f"rank-{rank}")


if __name__ == "__main__":
    main()
