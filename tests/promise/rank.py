"""A rank: `python3 rank.py DIRECTORY KIND`, of the kind "plain", "hook" or "collectives".

It writes down when and where it began, and then makes steps: no rank ends one before all others of its launch have
done their part of it. With "hook" it reports them, with "collectives" also what it waits in.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.2


def main() -> None:
    directory, kind = Path(sys.argv[1]), sys.argv[2]
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    rank, ranks = (int(os.environ[name]) for name in (("RANK", "WORLD_SIZE") if by_torchrun else SLURMS_NAMES))
    launch = directory / ".".join(["launch", *(os.environ.get(name, "0") for name in COUNTS)])
    launch.mkdir(exist_ok=True)
    monitor = _monitor() if kind != "plain" else None
    with (directory / f"starts-{rank}").open("a") as log:
        log.write(json.dumps({"at": time.time(), "node": os.environ.get("SLURMD_NODENAME"), "pid": os.getpid()}) + "\n")
    step = 0
    while True:
        with monitor.step(step) if monitor else contextlib.nullcontext():
            time.sleep(STEP_SECONDS)
            reported = monitor.collective("all_reduce") if monitor and kind == "collectives" else None
            with reported or contextlib.nullcontext():
                _all_reduce(launch, rank, ranks, step)
        step += 1
        _put(directory / f"steps-{rank}", str(time.time()))


SLURMS_NAMES = ("SLURM_PROCID", "SLURM_NTASKS")
COUNTS = ("SLURM_RESTART_COUNT", "UNDERSTUDY_LAUNCH")
"""What differs from launch to launch. Not so torchrun's own: its nodes count their restarts differently."""


def _monitor() -> Any:
    from understudy import Monitor

    return Monitor()


def _all_reduce(launch: Path, rank: int, ranks: int, step: int) -> None:
    _put(launch / f"rank-{rank}", str(step))
    for other in range(ranks):
        while _step_of(launch / f"rank-{other}") < step:
            time.sleep(0.05)


def _step_of(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1


def _put(file: Path, text: str) -> None:
    partial = file.with_suffix(".new")
    partial.write_text(text)
    partial.rename(file)


if __name__ == "__main__":
    main()
