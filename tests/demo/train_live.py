"""The demo's second gang, under `understudy run --in-process`: ranks that go on in their processes, and keep the state.

Every rank has all of the state. The new one gets it from another rank over the process group, and no file is read:
there is none before the end.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from understudy import Monitor
from understudy.restart import restartable
from understudy.state_handover import LiveState

SEED = 20_240_614
torch.manual_seed(SEED)
module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
live = LiveState(module=module, optimizer=optimizer)


def train(directory: Path, steps: int, kernel_seconds: float) -> None:
    torch.set_num_threads(1)
    with closing(Monitor()) as monitor:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        start = live.restore(lambda: 0)
        model = DistributedDataParallel(module)
        model.register_comm_hook(None, lambda _state, bucket: in_rank_order(bucket))
        for step in monitor.steps(range(start, steps)):
            time.sleep(kernel_seconds)
            inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(SEED + step * world + rank))
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.square().mean(dim=1, keepdim=True)).square().mean()
            loss.backward()
            with live.update(step + 1):
                optimizer.step()
        if rank == 0:
            torch.save(module.state_dict(), directory / "final.pt")
        dist.barrier()
        dist.destroy_process_group()


def in_rank_order(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The mean of all ranks' gradients, summed in the order of the ranks: the same to the last bit on each."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(torch.stack(parts).sum(dim=0) / len(parts))
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--kernel-seconds", type=float, required=True, help="time of a step's kernels")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    restartable(lambda: train(options.directory, options.steps, options.kernel_seconds))
