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
from understudy.state_handover import LiveState

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
loaded.clear()

# communicators of rank 0 were aborted, and the next gang broke before it agreed on a state
from understudy import restart, state_handover
live = made(7, 5)[2]
restart.Aborted.times += rank == 0
gather, state_handover._gather = state_handover._gather, lambda *_: 1 / 0
try:
    live.restore(load)
except ZeroDivisionError:
    pass
state_handover._gather = gather
assert live.restore(load) == 3 and loaded == [1]
loaded.clear()
assert live.restore(load) == 3 and not loaded
(Path(sys.argv[1]) / f"done-{rank}").touch()
dist.destroy_process_group()
"""


def test_new_ranks_get_the_newest_whole_state_of_those_that_are_left(tmp_path: Path) -> None:
    site = TrainingSite(tmp_path)
    site.train(GANG, 4, tmp_path / "no-agent.sock")
    assert len(list(site.checkpoints.iterdir())) == 4


HYBRID = """
import os, sys
import torch
import torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from understudy.state_handover import LiveState

rank, folder, loaded = int(os.environ["RANK"]), Path(sys.argv[1]), []
NAMES = ("replicate", "shard")


def gang(number):
    store = dist.FileStore(str(folder / f"gang-{number}"), 4)
    dist.init_process_group("gloo", rank=rank, world_size=4, store=store)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)
    torch.manual_seed(7 + 100 * number)  # what is made again differs, and so is it seen what was restored
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    return mesh, model, optimizer


def train(live, model, optimizer, first, until):
    for step in range(first, until):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 4 + rank))
        model(inputs).square().sum().backward()
        with live.update(step + 1):
            optimizer.step()
        optimizer.zero_grad()


def whole(model, optimizer):
    states = [one["exp_avg"] for one in optimizer.state.values()]
    return [one.full_tensor() for one in (*model.state_dict().values(), *states)]


def end():
    dist.barrier()
    dist.destroy_process_group()


def load():
    loaded.append(1)
    return 3


live = LiveState()
mesh, model, optimizer = gang(0)
shard = mesh["shard"].get_local_rank()
assert live.restore(load, shard=shard, model=model, optimizer=optimizer) == 3 and loaded.pop()
train(live, model, optimizer, 3, 6)
at_6 = whole(model, optimizer)
train(live, model, optimizer, 6, 9)
at_9 = whole(model, optimizer)
end()

# rank 3 is new: rank 1 has its shard. The model is another one, of another gang
mesh, model, optimizer = gang(1)
if rank == 3:
    live = LiveState()
assert live.restore(load, shard=shard, model=model, optimizer=optimizer) == 9 and not loaded
assert all(torch.equal(*both) for both in zip(whole(model, optimizer), at_9, strict=True))
train(live, model, optimizer, 9, 12)
at_12 = whole(model, optimizer)
end()

# the same steps without a fault
mesh, model, optimizer = gang(2)
alone = LiveState(model=model, optimizer=optimizer)
torch.manual_seed(7)
made = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
for to, origin in zip(model.parameters(), made.parameters(), strict=True):
    from torch.distributed.tensor import distribute_tensor
    to.data.copy_(distribute_tensor(origin.data, to.device_mesh, to.placements))
train(alone, model, optimizer, 3, 12)
assert all(torch.equal(*both) for both in zip(whole(model, optimizer), at_12, strict=True))
end()

# both ranks with shard 1 are new: not all of it is left
mesh, model, optimizer = gang(3)
if shard == 1:
    live = LiveState()
assert live.restore(load, shard=shard, model=model, optimizer=optimizer) == 3 and loaded.pop()
end()
(folder / f"done-{rank}").touch()
"""


def test_where_each_shard_is_on_several_ranks_a_new_one_gets_its_own(tmp_path: Path) -> None:
    """HSDP: the model is sharded within a replica, and made again for the new gang."""
    site = TrainingSite(tmp_path)
    site.train(HYBRID, 4, tmp_path / "no-agent.sock")
    assert len(list(site.checkpoints.glob("done-*"))) == 4


def test_ranks_that_stand_at_different_steps_go_on_from_the_newest_of_which_each_part_is_left() -> None:
    from understudy.state_handover import NONE, newest_whole

    assert newest_whole([(7, 0), (6, 0), (NONE, 0)]) == 7
    assert newest_whole([(7, 0), (6, 1), (6, 0), (NONE, 1)]) == 6
    assert newest_whole([(7, 0), (6, 1)]) == NONE
    assert newest_whole([(NONE, 0)]) == NONE
