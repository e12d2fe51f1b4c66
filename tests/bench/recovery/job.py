"""The job that every side runs: a synchronous "training" whose weights depend on each rank's part in every step.

`python job.py DIRECTORY [--step-seconds S] [--checkpoint-every K] [--import MODULE] [--heartbeat]
[--restartable]`

It behaves as a training over gloo does: a rank that loses a peer ends with an error, and so do all. It imports nothing
but the standard library unless an option needs it, and runs under any launcher. Rank 0 writes into DIRECTORY where the
others meet it: on the fabric, where nodes have one. Faults are files there, one a node (`faults.py`).
"""

import argparse
import fcntl
import importlib
import itertools
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.time()
PRIME = 2_147_483_647
MEET_SECONDS = 120.0
CONNECT_SECONDS = 1.0
"""The rank 0 that wrote where it is may be on a node that is gone."""
FABRIC = "ib0"
SIOCGIFADDR = 0x8915  # linux/sockios.h


def contribution(step: int, rank: int) -> int:
    return (step * 1_000_003 + rank * 7_919 + 12_345) % PRIME


def next_weight(weight: int, total: int) -> int:
    return (weight * 48_271 + total) % PRIME


def weight_after(steps: int, ranks: int) -> int:
    """What the weights are after so many steps, faults or none."""
    weight = 1
    for step in range(steps):
        weight = next_weight(weight, sum(contribution(step, rank) for rank in range(ranks)) % PRIME)
    return weight


class Peer:
    """A connection on which JSON lines travel."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._file = connection.makefile("rb")

    def say(self, value: object) -> None:
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def hear(self) -> Any:
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("a peer is gone")
        return json.loads(line)


def fabric_address() -> str:
    """Address of this node on the fabric; if nodes have no network of their own, that of the machine they all are."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", FABRIC.encode()))
        except OSError:
            return "127.0.0.1"
    return socket.inet_ntoa(found[20:24])


def join(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    connection.settimeout(MEET_SECONDS)
    return connection


class Gang:
    """All ranks of one start. Rank 0 collects and broadcasts."""

    def __init__(self, directory: Path, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._peers: dict[int, Peer] = {}
        if rank == 0:
            self.name = f"g{os.getpid()}-{os.environ.get('UNDERSTUDY_LAUNCH', '')}"  # a process may lead several
            self._gather(directory)
        else:
            self._hub = self._join(directory)

    def _gather(self, directory: Path) -> None:
        address = fabric_address()
        with socket.create_server((address, 0), backlog=64) as server:
            server.settimeout(MEET_SECONDS)
            partial = directory / f".meet-{os.getpid()}"
            partial.write_text(f"{address} {server.getsockname()[1]}")
            partial.rename(directory / "meet")
            while len(self._peers) < self.world - 1:
                connection, _ = server.accept()
                connection.settimeout(None)
                peer = Peer(connection)
                self._peers[int(peer.hear())] = peer
        for peer in self._peers.values():
            peer.say(self.name)

    def _join(self, directory: Path) -> Peer:
        """The file may still be that of the gang before, whose rank 0 listens no more."""
        deadline = time.monotonic() + MEET_SECONDS
        while True:
            try:
                address, port = (directory / "meet").read_text().split()
                hub = Peer(join(address, int(port)))
                hub.say(self.rank)
                self.name = hub.hear()
            except (OSError, ValueError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return hub

    def exchange(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Every rank gives a value, by rank; every rank gets what rank 0 makes of them. Raises where a peer is gone."""
        if self.rank != 0:
            self._hub.say(value)
            return self._hub.hear()
        values = [value, *(self._peers[rank].hear() for rank in sorted(self._peers))]
        answer = combine(values)
        for peer in self._peers.values():
            peer.say(answer)
        return answer


class Checkpoints:
    """A directory for each, with a file of every rank. Complete is the one that has them all."""

    def __init__(self, directory: Path, world: int) -> None:
        self._directory, self._world = directory, world
        directory.mkdir(exist_ok=True)

    def save(self, step: int, rank: int, weight: int) -> None:
        folder = self._directory / str(step)
        folder.mkdir(exist_ok=True)
        partial = self._directory / f".{step}-{rank}-{os.getpid()}"
        partial.write_text(str(weight))
        partial.rename(folder / str(rank))

    def newest(self) -> int:
        complete = [
            int(one.name)
            for one in self._directory.iterdir()
            if one.name.isdecimal() and len(list(one.iterdir())) == self._world
        ]
        return max(complete, default=0)

    def load(self, step: int, rank: int) -> int:
        return int((self._directory / str(step) / str(rank)).read_text()) if step else 1


class Hardware:
    """What the node under this rank does: works, is slow, is lost, or lets the rank hang or crash once."""

    def __init__(self, directory: Path) -> None:
        self._fault = directory / "faults" / os.environ.get("SLURMD_NODENAME", "none")

    def work(self, seconds: float) -> None:
        try:
            word, _, value = self._fault.read_text().partition(" ")
        except OSError:
            word, value = "", ""
        if word == "lost":
            raise SystemExit("CUDA error: the GPU is lost")
        if word == "crash":
            self._fault.unlink()
            raise SystemExit("a fault of the program")
        if word == "hang":
            self._fault.rename(self._fault.with_name(f"hung-{time.time():.6f}"))
            while True:
                time.sleep(3600)
        time.sleep(seconds * (float(value) if word == "slow" else 1.0))


def heartbeat(wanted: bool) -> Callable[[], object]:
    """NVRx' ft_launcher notices hung ranks by these."""
    if not wanted:
        return lambda: None
    client = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
    client.init_workload_monitoring()
    beat: Callable[[], object] = client.send_heartbeat
    return beat


def main(began: float = BEGAN) -> None:
    """Since when it is a rank of this gang."""
    options = read_options()
    directory, every = options.directory, options.checkpoint_every
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    monitor = importlib.import_module("understudy").Monitor(gpu_index=0)
    for module in filter(None, options.imports.split(",")):
        importlib.import_module(module)
    beat = heartbeat(options.heartbeat)
    gang = Gang(directory, rank, world)
    node, now = os.environ.get("SLURMD_NODENAME"), time.time()
    write(directory / "joined", gang=gang.name, rank=rank, node=node, began=began, joined=now)
    checkpoints, hardware = Checkpoints(directory / "checkpoints", world), Hardware(directory)
    step = gang.exchange(checkpoints.newest() if rank == 0 else None, lambda values: values[0])
    weight = checkpoints.load(step, rank)
    with (directory / "steps").open("a") as steps:
        while True:
            with monitor.step(step):
                hardware.work(options.step_seconds)
                with monitor.collective("all_reduce"):
                    total, stop = gang.exchange(
                        contribution(step, rank), lambda values: total_and_stop(values, directory)
                    )
            weight = next_weight(weight, total)
            step += 1
            beat()
            if rank == 0:
                steps.write(f"{time.time():.6f} {gang.name} {step}\n")  # the last number is what --progress-file wants
                steps.flush()
            if step == stop:
                break
            if step % every == 0:
                checkpoints.save(step, rank, weight)
                gang.exchange(None, len)
    write(directory / "final", rank=rank, step=step, weight=weight)
    gang.exchange(None, len)
    monitor.close()


def total_and_stop(values: list[int], directory: Path) -> tuple[int, int]:
    try:
        stop = int((directory / "stop").read_text())
    except (OSError, ValueError):
        stop = -1
    return sum(values) % PRIME, stop


def write(path: Path, **fields: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(fields) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--import", dest="imports", default="")
    parser.add_argument("--heartbeat", action="store_true")
    parser.add_argument("--restartable", action="store_true")
    return parser.parse_args()


def go_on_in_the_process() -> None:
    """A rank that loses a peer is one of the next gang at once, with `understudy run --in-process`."""
    times = itertools.count()
    importlib.import_module("understudy.restart").restartable(lambda: main(time.time() if next(times) else BEGAN))


if __name__ == "__main__":
    try:
        (go_on_in_the_process if read_options().restartable else main)()
    except (OSError, ValueError) as error:
        sys.exit(f"{os.environ.get('SLURMD_NODENAME')}: {error}")
