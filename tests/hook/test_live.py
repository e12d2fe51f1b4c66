"""State that the ranks that are left keep: what a new rank gets, and when a checkpoint is restored instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hook.training_site import TrainingSite

pytestmark = [pytest.mark.integration, pytest.mark.patient]

GANG = """
import os, sys
import torch
import torch.distributed as dist
from pathlib import Path
from understudy.live import LiveState

rank = int(os.environ["RANK"])
loaded = []


def made(seed, steps, broken=False):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(KIND)
    optimizer = torch.optim.AdamW(model.parameters())
    live = LiveState(model=model, optimizer=optimizer)
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, 8, dtype=next(model.parameters()).dtype)).float().square().sum().backward()
        try:
            with live.update(step + 1):
                optimizer.step()
                if broken and step + 1 == steps:
                    raise ConnectionError("a peer is gone")
        except ConnectionError:
            pass
    return model, optimizer, live


def same_everywhere(model, optimizer):
    flat = torch.cat([one.float().reshape(-1) for one in model.state_dict().values()])
    moments = [state["exp_avg"].float().reshape(-1) for state in optimizer.state.values()]
    flat = torch.cat([flat, *moments, torch.tensor([float(len(moments))])])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    return all(torch.equal(parts[0], part) for part in parts)


def load():
    loaded.append(1)
    return 3


dist.init_process_group("gloo")
for KIND in (torch.float32, torch.bfloat16):
    # rank 0 has finished step 6, rank 1 only step 5, ranks 2 and 3 are new
    model, optimizer, live = made(7 if rank < 2 else 100 + rank, {0: 7, 1: 6}.get(rank, 0))
    assert live.restore(load) == 7
    assert same_everywhere(model, optimizer) and not loaded
    assert next(iter(optimizer.state.values()))["step"] == 7

    # the same step again, which is the second and last time; then a checkpoint
    assert live.restore(load) == 7 and not loaded
    assert live.restore(load) == 3 and loaded == [1]
    loaded.clear()

# rank 0 failed within its update: what it has is not whole
model, optimizer, live = made(7, 5 if rank else 6, broken=not rank)
assert live.restore(load) == 5 and not loaded
assert same_everywhere(model, optimizer)

# no rank has kept it
assert made(7, 0)[2].restore(load) == 3 and loaded == [1]
(Path(sys.argv[1]) / f"done-{rank}").touch()
dist.destroy_process_group()
"""


def test_new_ranks_get_the_newest_whole_state_of_those_that_are_left(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.train(GANG, 4, tmp_path / "no-agent.sock")
    assert len(list(site.checkpoints.iterdir())) == 4
