"""Two ranks of a gang, each with a channel as its seat has it (`understudy run --in-process`). One is killed, another
process takes its place, and the first goes on: within how many seconds, and in the same process or not. The one that
stays has kept the state of the training, the new one gets it from there: whether it is the same, and how many steps are
lost.

By NCCL each rank has a GPU of its own. By gloo both have the same one, or none, as in the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.testbed.configuration import free_ports
from understudy_launcher.rank_channel import DESCRIPTOR_VARIABLE, Channel
from understudy_launcher.seat import LEAVE_SECONDS as ORDER_SECONDS

LEAVE_SECONDS = 20.0
START_SECONDS = 90.0
STEPS_BEFORE, STEPS_AFTER = 10**9, 3

PROGRAM = """
import os, sys
import zlib
from datetime import timedelta
import torch
import torch.distributed as dist
from understudy.state_handover import LiveState
from understudy.restart import restartable

backend, on_gpu, megabytes = sys.argv[1], sys.argv[2] == "cuda", int(sys.argv[3])
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank if backend == "nccl" else 0) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
torch.manual_seed(rank)
width = max(8, int((megabytes * 2**20 / 4 / 3) ** 0.5))  # the weights and two moments of Adam, of four bytes each
model = torch.nn.Linear(width, width, bias=False, device=device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
live = LiveState(model=model, optimizer=optimizer)

def seen():
    parts = [model.weight, *(one[name] for one in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))]
    return [zlib.crc32(one.detach().cpu().numpy()) for one in parts]

def train():
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    start = live.restore(lambda: 0)
    if os.environ["LAUNCH"] == "1":
        print("restored", start, *seen(), flush=True)
    for step in range(start, start + int(os.environ["STEPS"])):
        optimizer.zero_grad()
        model(torch.ones(1, width, device=device)).square().mean().backward()
        dist.all_reduce(model.weight.grad)
        with live.update(step + 1):
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        print(os.environ["LAUNCH"], step, flush=True)
    dist.destroy_process_group()

restartable(train)
"""


class TooLongError(RuntimeError):
    """What did not happen in time."""


@dataclass
class Rank:
    channel: Channel
    process: subprocess.Popen[bytes]
    output: Path

    def steps(self, launch: int) -> int:
        return sum(line.startswith(f"{launch} ") for line in self.output.read_text().splitlines())

    def finished(self, launch: int) -> int:
        """The step after the last one."""
        lines = [line.split() for line in self.output.read_text().splitlines()]
        return max((int(line[1]) + 1 for line in lines if line[0] == str(launch) and len(line) == 2), default=0)

    def restored(self) -> list[str]:
        """The step with which it goes on, and checksums of its state."""
        lines = [line.split() for line in self.output.read_text().splitlines()]
        return next(line[1:] for line in lines if line[0] == "restored")

    def waits(self) -> bool:
        self.channel.read()
        return self.channel.waiting

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.seat_end.close()


def part(rank: int, launch: int, port: int, steps: int) -> dict[str, str]:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return address | {"RANK": str(rank), "WORLD_SIZE": "2", "LAUNCH": str(launch), "STEPS": str(steps)}


@dataclass(frozen=True)
class Gang:
    folder: Path
    backend: str
    device: str
    megabytes: int  # of state, for each rank

    def start(self, environment: dict[str, str]) -> Rank:
        return start(self.folder, (self.backend, self.device, str(self.megabytes)), environment)


def start(folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> Rank:
    channel = Channel()
    output = folder / f"rank-{environment['RANK']}-{environment['LAUNCH']}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**os.environ, **environment, DESCRIPTOR_VARIABLE: str(channel.descriptor)},
            pass_fds=(channel.descriptor,),
            stdout=file,
        )
    channel.close_rank_end()
    return Rank(channel, process, output)


def wait(what: str, condition: Callable[[], bool], seconds: float) -> float:
    """Returns how long it took."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TooLongError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - begun


def measure(backend: str, device: str, megabytes: int) -> dict[str, object]:
    first, second = free_ports(2)
    ranks: list[Rank] = []
    with TemporaryDirectory(prefix="understudy-hardware-") as name:
        gang = Gang(Path(name), backend, device, megabytes)
        try:
            ranks += [gang.start(part(rank, 0, first, STEPS_BEFORE)) for rank in (0, 1)]
            stays, lost = ranks
            wait("the first launch's steps", lambda: min(stays.steps(0), lost.steps(0)) >= STEPS_AFTER, START_SECONDS)
            lost.process.send_signal(signal.SIGKILL)
            begun = time.monotonic()

            def has_left() -> bool:
                if time.monotonic() - begun > ORDER_SECONDS:
                    stays.channel.order_to_leave()
                return stays.waits()

            left: float | None = None
            try:
                left = wait("a rank leaves its broken gang", has_left, LEAVE_SECONDS)
            except TooLongError:  # its seat then ends it, and another process takes its place
                stays.end()
                stays = gang.start(part(0, 1, second, STEPS_AFTER))
                ranks.append(stays)
            else:
                stays.channel.go_on(part(0, 1, second, STEPS_AFTER))
            finished = ranks[0].finished(0)
            comes = gang.start(part(1, 1, second, STEPS_AFTER))
            ranks.append(comes)
            wait("the second launch's first step", lambda: stays.steps(1) > 0, START_SECONDS)
            again = time.monotonic() - begun
            wait("the end of the second launch", lambda: stays.process.poll() is not None, START_SECONDS)
            return {
                "backend": backend,
                "device": device,
                "megabytes": megabytes,
                "steps_lost": finished - int(stays.restored()[0]),
                "same_state": stays.restored() == comes.restored(),
                "left_after_seconds": None if left is None else round(left, 2),
                "first_step_after_seconds": round(again, 2),
                "exit_code": stays.process.returncode,
            }
        finally:
            for rank in ranks:
                rank.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--megabytes", type=int, default=1, help="of the state of each rank")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.backend, options.device, options.megabytes)) + "\n")


if __name__ == "__main__":
    main()
