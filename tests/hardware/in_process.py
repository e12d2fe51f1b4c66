"""Two ranks of a gang, each with a channel as its seat has it (`understudy run --in-process`). One is killed, another
process takes its place, and the first goes on: within how many seconds, and in the same process or not.

By NCCL each rank has a GPU of its own; by gloo, for the tests, none.
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
from understudy_agent.launch.channel import DESCRIPTOR_VARIABLE, Channel

LEAVE_SECONDS = 20.0
START_SECONDS = 90.0
STEPS_BEFORE, STEPS_AFTER = 10**9, 3

PROGRAM = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from understudy.restart import restartable

backend = sys.argv[1]

def train():
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    value = torch.ones(1024, device=device)
    for step in range(int(os.environ["STEPS"])):
        dist.all_reduce(value)
        value.div_(2)
        if backend == "nccl":
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


def start(folder: Path, backend: str, environment: dict[str, str]) -> Rank:
    channel = Channel()
    output = folder / f"rank-{environment['RANK']}-{environment['LAUNCH']}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, backend],
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


def measure(backend: str) -> dict[str, object]:
    first, second = free_ports(2)
    ranks: list[Rank] = []
    with TemporaryDirectory(prefix="understudy-hardware-") as name:
        folder = Path(name)
        try:
            ranks += [start(folder, backend, part(rank, 0, first, STEPS_BEFORE)) for rank in (0, 1)]
            stays, lost = ranks
            wait("the first launch's steps", lambda: min(stays.steps(0), lost.steps(0)) >= STEPS_AFTER, START_SECONDS)
            lost.process.send_signal(signal.SIGKILL)
            begun = time.monotonic()
            left: float | None = None
            try:
                left = wait("a rank leaves its broken gang", stays.waits, LEAVE_SECONDS)
            except TooLongError:  # its seat then ends it, and another process takes its place
                stays.end()
                stays = start(folder, backend, part(0, 1, second, STEPS_AFTER))
                ranks.append(stays)
            else:
                stays.channel.go_on(part(0, 1, second, STEPS_AFTER))
            ranks.append(start(folder, backend, part(1, 1, second, STEPS_AFTER)))
            wait("the second launch's first step", lambda: stays.steps(1) > 0, START_SECONDS)
            again = time.monotonic() - begun
            wait("the end of the second launch", lambda: stays.process.poll() is not None, START_SECONDS)
            return {
                "backend": backend,
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
    sys.stdout.write(json.dumps(measure(parser.parse_args().backend)) + "\n")


if __name__ == "__main__":
    main()
