"""State of two ranks with a GPU, in the memory of two nodes of this machine: how long a save holds the training up, and
what a rank on another node restores after one is lost. By gloo, both with the first GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from tests.keeper.site import KeeperSite

SAVES = 4

GANG = """
import json, os, sys, time, zlib
import torch
import torch.distributed as dist
from pathlib import Path
from understudy import Monitor
from understudy.peer import PeerState

folder, rank, attempt = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["ATTEMPT"])
device = torch.device(DEVICE)
torch.manual_seed(100 * attempt + rank)
width = max(8, int((MEGABYTES * 2**20 / 4 / 3) ** 0.5))  # the weights and two moments of Adam, of four bytes each
model = torch.nn.Linear(width, width, bias=False, device=device)
optimizer = torch.optim.Adam(model.parameters())
monitor = Monitor()
peers = PeerState(monitor, model=model, optimizer=optimizer)


def step():
    optimizer.zero_grad()
    model(torch.ones(1, width, device=device)).square().mean().backward()
    optimizer.step()


def seen():
    parts = [model.weight, *(one[name] for one in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))]
    return [zlib.crc32(one.detach().cpu().numpy()) for one in parts]


def timed(do):
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    begun = time.perf_counter()
    done = do()
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    return time.perf_counter() - begun, done


dist.init_process_group("gloo")
restored_seconds, start = timed(peers.restore)
found = {"start": start, "restored_seconds": restored_seconds, "seen": seen(), "blocked_seconds": []}
if attempt == 0:
    for number in range(SAVES):
        step()
        dist.barrier()
        taken, begun = timed(lambda: peers.save(number + 1))
        assert begun and peers.wait(60)
        found["blocked_seconds"].append(taken)
    found["seen"] = seen()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dist.barrier()
    found["copy_seconds"] = timed(lambda: [model.weight.cpu(), *(
        one[name].cpu() for one in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))])[0]
    dist.barrier()
    found["torch_save_seconds"] = timed(lambda: torch.save(state, folder / f"state-{rank}"))[0]
(folder / f"found-{attempt}-{rank}").write_text(json.dumps(found))
dist.barrier()
monitor.close()
dist.destroy_process_group()
"""


class Found(msgspec.Struct, frozen=True):
    start: int | None
    restored_seconds: float
    seen: list[int]
    blocked_seconds: list[float]
    copy_seconds: float = 0.0
    torch_save_seconds: float = 0.0


def measure(device: str, megabytes: int) -> dict[str, object]:
    with TemporaryDirectory(prefix="understudy-hardware-") as name:
        folder = Path(name)
        site = KeeperSite(folder, memory_bytes=8 * megabytes * 2**20)
        script = f"DEVICE, MEGABYTES, SAVES = {device!r}, {megabytes}, {SAVES}\n{GANG}"

        def run(nodes: list[str], attempt: int) -> list[Found]:
            site.train_on(nodes, script, attempt)
            files = [site.checkpoints / f"found-{attempt}-{rank}" for rank in range(len(nodes))]
            return [msgspec.json.decode(file.read_bytes(), type=Found) for file in files]

        try:
            site.start("n1", "n2", "n3")
            before = run(["n1", "n2"], 0)
            site.kill("n2")
            after = run(["n1", "n3"], 1)
        finally:
            site.close()
    first, *later = zip(*(one.blocked_seconds for one in before), strict=True)
    return {
        "device": device,
        "megabytes": megabytes,
        "first_blocked_seconds": round(max(first), 3),
        "blocked_seconds": round(median(map(max, later)), 3),
        "copy_seconds": round(max(one.copy_seconds for one in before), 3),
        "torch_save_seconds": round(max(one.torch_save_seconds for one in before), 3),
        "restored_seconds": round(max(one.restored_seconds for one in after), 3),
        "same_state": [one.seen for one in before] == [one.seen for one in after],
        "start": [one.start for one in after],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--megabytes", type=int, default=1024, help="of the state of each rank")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.device, options.megabytes)) + "\n")


if __name__ == "__main__":
    main()
