"""The ways to save and restore that are compared. Each is one class, made on every rank; `SIDES` names them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

from tests.object_store import BUCKET
from understudy import Monitor, objects
from understudy.checksum import new_sum
from understudy.dcp import UnderstudyWriter
from understudy.identity import read_identity
from understudy.keeper import KeeperLink, keeper_socket
from understudy.peer import PeerState
from understudy.state_handover import LiveState
from understudy.torch_save import save
from understudy_agent.files.carry_out import carry_out

State = dict[str, torch.Tensor]


class Side:
    """`state` is this rank's, and changed in place. `step` is the one with which training continues."""

    tier = ""
    """Tier of Understudy that it stands for; empty: a rival."""

    def __init__(self, folder: Path, state: State, monitor: Monitor) -> None:
        self.folder, self.state, self.monitor, self.rank = folder, state, monitor, dist.get_rank()

    def update(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Around what changes the state, as far as that is the training's to do."""
        del step
        return contextlib.nullcontext()

    def save(self, step: int) -> None:
        """The training waits for what happens here."""

    def finish(self) -> None:
        """Until what was saved would survive."""

    def fetch(self, lost: int) -> float | None:
        """Seconds in which rank `lost` gets its part from another node's memory, the others wait; None: it does not."""
        del lost
        return None

    def restore(self, lost: int) -> int:
        """After rank `lost` is gone and a new process, without state, has its place. Returns the step."""
        raise NotImplementedError


class Files(Side):
    """What the sides that write files have in common."""

    step = 0

    def finish(self) -> None:
        dist.barrier()
        if self.rank == 0:  # one checkpoint is on disk at a time
            for old in self.folder.iterdir():
                if old != self.place():
                    shutil.rmtree(old)
        for file in self.place().iterdir():
            _forget_pages(file)
        dist.barrier()

    def place(self) -> Path:
        return self.folder / f"step-{self.step}"

    def begin(self, step: int) -> Path:
        self.step = step
        self.place().mkdir(parents=True, exist_ok=True)
        return self.place()


class TorchSave(Files):
    """torch.save and fsync, as most trainings do it."""

    def save(self, step: int) -> None:
        with (self.begin(step) / f"rank-{self.rank}.pt").open("wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())

    def restore(self, lost: int) -> int:
        del lost
        self._take(torch.load(self.place() / f"rank-{self.rank}.pt", weights_only=True))
        return self.step

    def _take(self, loaded: State) -> None:
        for name, value in loaded.items():
            self.state[name].copy_(value)


class Nvme(TorchSave):
    """Tier local: `understudy.torch_save`, with checksums, announced to the agent."""

    tier = "nvme"

    def save(self, step: int) -> None:
        place = self.begin(step)
        save(self.monitor, self.state, step, place, f"rank-{self.rank}.pt", layout="fixed", tier="local")


class Object(Nvme):
    """Tier object: written to a disk of the node, copied to an object store as an agent copies it, without its limit of
    bytes a second. The new node fetches what the lost rank wrote; the others have their parts on their disks.
    """

    tier = "object"

    def finish(self) -> None:
        file = self.place() / f"rank-{self.rank}.pt"
        announced = {"file": file.name, "size_bytes": file.stat().st_size, "checksum": _sum_of(file), "at": 0.0}
        task = {"path": str(self.place()), "files": [announced], "bytes_per_second": 1e12}
        found = carry_out({**task, "type": "copy", "copy_to": self._address()})
        if found["outcome"] != "copied":
            raise SystemExit(f"the checkpoint was not copied: {found['why']}")
        super().finish()

    def restore(self, lost: int) -> int:
        if self.rank == lost:
            fetched = Path(
                objects.fetch(self._address(), [f"rank-{self.rank}.pt"], str(self.folder.parent / "fetched"))
            )
            self._take(torch.load(fetched / f"rank-{self.rank}.pt", weights_only=True))
            shutil.rmtree(fetched)
            return self.step
        return super().restore(lost)

    def _address(self) -> str:
        return f"s3://{BUCKET}/{self.place().name}"


class Dcp(Files):
    """torch.distributed.checkpoint."""

    def save(self, step: int) -> None:
        save_dcp(self._own(), storage_writer=FileSystemWriter(self.begin(step)))

    def restore(self, lost: int) -> int:
        del lost
        load(self._own(), storage_reader=FileSystemReader(self.place()))
        return self.step

    def _own(self) -> dict[str, Any]:
        """State with names that no other rank has: DCP saves what has one name once."""
        return {f"{self.rank}.{name}": value for name, value in self.state.items()}


class DcpAsync(Dcp):
    """The training waits for the copy in memory alone."""

    def __init__(self, folder: Path, state: State, monitor: Monitor) -> None:
        super().__init__(folder, state, monitor)
        self._under_way: Any = None
        self._group = dist.new_group(backend="gloo")  # it writes in a thread, while the training uses its own group

    def save(self, step: int) -> None:
        self.finish_writing()
        writer = self.writer(step)
        self._under_way = async_save(self._own(), storage_writer=writer, process_group=self._group)

    def writer(self, step: int) -> FileSystemWriter:
        return FileSystemWriter(self.begin(step))

    def finish_writing(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def finish(self) -> None:
        self.finish_writing()
        super().finish()


class Shared(DcpAsync):
    """Tier shared: async_save with `UnderstudyWriter`, announced to the agent."""

    tier = "shared"

    def writer(self, step: int) -> FileSystemWriter:
        return UnderstudyWriter(self.monitor, step, self.begin(step), tier="shared")


class Live(Side):
    """Tier live: every rank has the whole state, and a new one gets it from another."""

    tier = "live"

    def __init__(self, folder: Path, state: State, monitor: Monitor) -> None:
        super().__init__(folder, state, monitor)
        self._live = LiveState(state=_Part(state))

    def update(self, step: int) -> contextlib.AbstractContextManager[None]:
        return self._live.update(step)

    def restore(self, lost: int) -> int:
        if self.rank == lost:
            self._live = LiveState(state=_Part(self.state))
        return self._live.restore(lambda: -1)


class _Part:
    def __init__(self, state: State) -> None:
        self._state = state

    def state_dict(self) -> State:
        return self._state

    def load_state_dict(self, loaded: State) -> None:
        for name, value in loaded.items():
            self._state[name].copy_(value)


class Peer(Side):
    """Tier peer: each rank is a node with a keeper. The new node's keeper has nothing."""

    tier = "peer"

    def __init__(self, folder: Path, state: State, monitor: Monitor) -> None:
        super().__init__(folder, state, monitor)
        self._peers = self._made()
        self._peers.restore()

    def save(self, step: int) -> None:
        if not self._peers.save(step):
            raise SystemExit("the gang does not save in memory")

    def finish(self) -> None:
        if not self._peers.wait():
            raise SystemExit("a part is not held in memory")

    def restore(self, lost: int) -> int:
        if self.rank == lost:
            self._peers.free()
            self._peers = self._made()
        step = self._peers.restore()
        if step is None:
            raise SystemExit("there is no whole save in memory")
        return step

    def fetch(self, lost: int) -> float | None:
        """Fetches from a keeper that does not have it, into memory that is there, with its checksum."""
        link = KeeperLink(keeper_socket(os.environ), read_identity(os.environ).job_id)
        has = _gather((link.address, link.ask("list")["parts"]))
        seconds = 0.0
        if self.rank == lost:
            link.ask("free")
            named = max((one for one in has[lost][1] if one["rank"] == lost), key=lambda one: one["save"])
            keeper = next(address for address, parts in has if address != link.address and named in parts)
            memory = memoryview(bytearray(b"1" * int(named["length"])))
            begun = time.perf_counter()
            part = link.part(keeper=keeper, **named)
            part.read_into(memory)
            part.finish()
            seconds = time.perf_counter() - begun
        link.close()
        return float(_gather(seconds)[lost])

    def _made(self) -> PeerState:
        return PeerState(self.monitor, state=_Part(self.state))


class TcpCopy(Files):
    """What a plain copy of one rank's state takes over TCP: no save is as quick to read."""

    def save(self, step: int) -> None:
        self.begin(step)

    def fetch(self, lost: int) -> float | None:
        dist.barrier()
        begun = time.perf_counter()
        self.restore(lost)
        return float(_gather(time.perf_counter() - begun)[lost])

    def restore(self, lost: int) -> int:
        source = (lost + 1) % dist.get_world_size()
        parts = [memoryview(_bytes(one)) for one in self.state.values()]
        address: list[Any] = [None]
        if self.rank == lost:
            listening = socket.create_server(("127.0.0.1", 0))
            address[0] = listening.getsockname()
        dist.broadcast_object_list(address, lost)
        if self.rank == lost:
            with listening, listening.accept()[0] as connection:
                for part in parts:
                    _receive(connection, part)
        elif self.rank == source:
            with socket.create_connection(tuple(address[0])) as connection:
                for part in parts:
                    connection.sendall(part)
        return self.step


SIDES: dict[str, type[Side]] = {
    "live": Live,
    "peer": Peer,
    "nvme": Nvme,
    "shared": Shared,
    "object": Object,
    "torch_save": TorchSave,
    "dcp": Dcp,
    "dcp_async": DcpAsync,
    "tcp_copy": TcpCopy,
}


def _gather(own: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint8).reshape(-1).numpy()


def _receive(connection: socket.socket, part: memoryview) -> None:
    while part:
        part = part[connection.recv_into(part, min(len(part), 1 << 22)) :]


def _sum_of(file: Path) -> str:
    """Checksum as `understudy.torch_save` made it while it wrote."""
    found = new_sum()
    assert found is not None
    name, made = found
    with file.open("rb") as opened:
        while data := opened.read(1 << 20):
            made.update(data)
    return f"{name}:{made.hexdigest()}"


def _forget_pages(file: Path) -> None:
    """A restore on a new node finds nothing in memory."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
