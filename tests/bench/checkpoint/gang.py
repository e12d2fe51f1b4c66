"""A rank of the gang that `make bench-checkpoint` starts: it saves and restores with each side."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench.checkpoint.sides import SIDES, Side, State
from understudy import Monitor

STEPS_BETWEEN = 10
"""Steps from one save to the next."""

STEPS_AFTER = 5
"""Steps from a save to the fault."""

SAME_ON_ALL = ("live", "tcp_copy")
"""Sides whose ranks all have the same state."""

TENSORS = 16
LOOKS = 2_000
STEP_SECONDS = 0.1
SAVE_EVERY = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--sides", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    monitor = Monitor()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for name in options.sides.split(","):
        folder = options.folder / name
        if rank == 0:
            folder.mkdir()
        dist.barrier()
        state = _state(options.megabytes, 0 if name in SAME_ON_ALL else rank)
        side = SIDES[name](folder, state, monitor)
        rounds = [_round(side, state, number) for number in range(options.rounds + 1)]
        found[name] = {"tier": side.tier, "rounds": rounds[1:]}  # the first one warms up
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    found["overhead_share"] = _overhead_share(monitor, options.folder, rank)
    if rank == 0:
        (options.folder / "result.json").write_text(json.dumps(found))
    dist.barrier()
    monitor.close()
    dist.destroy_process_group()


def _round(side: Side, state: State, number: int) -> dict[str, float | None]:
    """A save, steps after it, and the loss of the last rank."""
    lost = dist.get_world_size() - 1
    first = number * STEPS_BETWEEN
    for step in range(first, first + STEPS_BETWEEN):
        _train(side, state, step)
    _meet()
    begun = time.perf_counter()
    side.save(first + STEPS_BETWEEN)
    blocked = _slowest(time.perf_counter() - begun)
    side.finish()
    written = _slowest(time.perf_counter() - begun)
    before = _sum_of(state)
    reached = first + STEPS_BETWEEN + STEPS_AFTER
    if side.tier == "live":  # a file keeps what was saved, a replica what was reached
        for step in range(first + STEPS_BETWEEN, reached):
            _train(side, state, step)
        before = _sum_of(state)
    if dist.get_rank() == lost:
        for value in state.values():
            value.zero_()
    _meet()
    fetched = side.fetch(lost)
    _meet()
    begun = time.perf_counter()
    step = side.restore(lost)
    restored = _slowest(time.perf_counter() - begun)
    if _sum_of(state) != before:
        raise SystemExit(f"{type(side).__name__} did not restore what was there")
    _meet()
    begun = time.perf_counter()
    _train(side, state, step)
    return {
        "blocked_seconds": blocked,
        "written_seconds": written,
        "restore_seconds": restored,
        "first_step_after_restore_seconds": restored + _slowest(time.perf_counter() - begun),
        "steps_lost": reached - step,
        "fetch_seconds": fetched,
    }


def _state(megabytes: int, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    count = megabytes * 1_000_000 // 4 // TENSORS
    return {f"weight-{number}": torch.rand(count, generator=generator) for number in range(TENSORS)}


def _train(side: Side, state: State, step: int) -> None:
    gradient = torch.ones(1024)
    dist.all_reduce(gradient)
    with side.update(step + 1):
        for value in state.values():
            value[:1024] += gradient[: len(value)]


def _sum_of(state: State) -> float:
    return float(sum(value.double().sum().item() for value in state.values()))


def _meet() -> None:
    dist.barrier()


def _slowest(seconds: float) -> float:
    taken = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken.item())


def _overhead_share(monitor: Monitor, folder: Path, rank: int) -> float:
    """Share of a step that the training's thread spends on the catalogue, with a checkpoint in every hundredth step."""
    path = folder / "overhead"
    path.mkdir(exist_ok=True)
    file = f"rank-{rank}"
    (path / file).write_bytes(b"0")
    _meet()
    begun = time.perf_counter()
    for step in range(1, LOOKS + 1):
        if monitor.checkpoints.due(step, every=SAVE_EVERY):
            with monitor.checkpoints.begin(step, path, layout="fixed") as save:
                save.shard(file)
    return _slowest((time.perf_counter() - begun) / LOOKS / STEP_SECONDS)


if __name__ == "__main__":
    assert os.environ["RANK"]
    main()
