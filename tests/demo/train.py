"""The demo's training job: PyTorch DDP over gloo, deterministic to the last bit, whatever happens to its nodes.

What makes it so: every step draws its data from its own number; optimizer, random state and data cursor are part of
the checkpoint; and gradients are summed in rank order. (DDP rearranges its buckets after the first step of each
start, which changes the order of summation; the hook below gathers and sums in rank order, so layout is no matter.)

Each rank saves its state in the memory of two nodes after every step, and in files after every twentieth: the gang goes
on from memory, and from files where nothing whole is there.

There is no GPU here. The time a GPU's kernels would take is slept, at the clock that NVML reports for this rank's GPU:
a GPU that throttles makes its rank slow, as it does in life.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from understudy import Monitor

monitor = Monitor(gpu_index=0)  # before the slow imports: the gang is known to be starting

import pynvml  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from understudy.peer import PeerState  # noqa: E402

Key = TypeVar("Key")
Value = TypeVar("Value")

FEATURES = 64
BATCH = 32
SEED = 20_240_613


@dataclass(frozen=True, slots=True)
class Options:
    steps: int
    checkpoint_every: int
    kernel_seconds: float
    directory: Path


class Gpu:
    """The GPU of this rank: lends its clock to the time that a step takes."""

    def __init__(self, index: int) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._full_clock = pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM)

    def work(self, seconds: float) -> None:
        """`seconds` at full clock, longer at less. A lost GPU raises NVMLError, as a CUDA call would."""
        clock = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
        time.sleep(seconds * self._full_clock / max(clock, 1))


class RandomState:
    """State of this rank, as a part of what is saved in memory."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        torch.set_rng_state(state["torch"])


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(_model(), bucket_cap_mb=100)
    model.register_comm_hook(None, lambda _state, bucket: sum_in_rank_order(bucket))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peers = PeerState(monitor, model=model.module, optimizer=optimizer, random=RandomState())
    first = _restore(peers, model.module, optimizer, rank)
    gpu = Gpu(0)
    for step in range(first, options.steps):
        with monitor.step(step):
            _train_step(step, rank, model, optimizer, lambda: gpu.work(options.kernel_seconds))
        peers.save(step + 1)
        if (step + 1) % options.checkpoint_every == 0:
            _save(options, step + 1, model.module, optimizer, rank)
    if rank == 0:
        torch.save(model.module.state_dict(), options.directory / "final.pt")
    peers.free()
    dist.barrier()
    monitor.close()
    dist.destroy_process_group()


def sum_in_rank_order(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean of all ranks' gradients, summed 0, 1, 2, … on every rank alike.

    `bucket` is a torch.distributed.GradBucket, which torch does not export to type checkers.
    """
    gradient = bucket.buffer()
    parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    with monitor.collective("all_gather"):
        dist.all_gather(parts, gradient)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    result.set_result(total / len(parts))
    return result


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)
    )


def _train_step(
    step: int, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, kernels: Callable[[], None]
) -> None:
    generator = torch.Generator().manual_seed(SEED + step * 1009 + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    targets = inputs.square().mean(dim=1, keepdim=True)
    kernels()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    optimizer.step()


def _save(options: Options, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Each rank writes its shard: the weights and optimizer state that it owns, and its own random state."""
    directory = options.directory / f"step-{step:06d}"
    directory.mkdir(exist_ok=True)
    world = dist.get_world_size()
    optimizer_state = optimizer.state_dict()
    shard = {
        "step": step,
        "cursor": step,
        "world_size": world,
        "rng": torch.get_rng_state(),
        "weights": _every(model.state_dict(), rank, world),
        "optimizer": _every(optimizer_state["state"], rank, world),
        "groups": optimizer_state["param_groups"],
    }
    file = f"rank-{rank}.pt"
    partial = directory / f".{file}.{os.getpid()}"
    torch.save(shard, partial)
    partial.rename(directory / file)
    monitor.checkpoint_saved(step, str(directory), file)


def _every(state: dict[Key, Value], rank: int, world: int) -> dict[Key, Value]:
    """The entries that this rank writes: one in `world`."""
    return {key: value for i, (key, value) in enumerate(state.items()) if i % world == rank}


def _restore(peers: PeerState, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> int:
    """The step to continue from. Every rank asks, and all get the same answer."""
    step, path = monitor.restore_point()
    in_memory = peers.restore(at_least=step)
    if in_memory is not None:
        _show_restored(rank, in_memory, "memory")
        return in_memory
    if not path:
        return 0
    world = dist.get_world_size()
    shards = [torch.load(Path(path) / f"rank-{r}.pt", weights_only=True) for r in range(world)]
    steps = {shard["step"] for shard in shards}
    if steps != {step} or any(shard["world_size"] != world for shard in shards):
        raise SystemExit(f"{path} does not hold step {step} of {world} ranks but steps {steps}")
    model.load_state_dict({key: value for shard in shards for key, value in shard["weights"].items()})
    optimizer.load_state_dict(
        {
            "state": {key: value for shard in shards for key, value in shard["optimizer"].items()},
            "param_groups": shards[rank]["groups"],
        }
    )
    torch.set_rng_state(shards[rank]["rng"])
    _show_restored(rank, step, "files")
    return step


def _show_restored(rank: int, step: int, tier: str) -> None:
    if rank == 0:
        attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        print(json.dumps({"restored": step, "from": tier, "attempt": attempt}), flush=True)


def _options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--kernel-seconds", type=float, default=0.08, help="time of a step's kernels at full clock")
    parser.add_argument("directory", type=Path)
    return Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
