"""The schedule of `network.py` over torch.distributed. With NCCL it was never tried on hardware."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from understudy_selfcheck.network import CHUNK_BYTES, SILENT_SECONDS, SocketMesh
from understudy_wire.addresses import with_port


class TorchMesh:
    def __init__(self, joined: SocketMesh) -> None:
        self.rank, self.names = joined.rank, joined.names
        self._device = torch.device("cuda" if joined.transport == "nccl" else "cpu")
        dist.init_process_group(
            joined.transport,
            init_method=f"tcp://{with_port(*joined.meeting)}",
            rank=joined.rank,
            world_size=len(joined.names),
            timeout=timedelta(seconds=SILENT_SECONDS),
        )
        self._chunk = torch.zeros(CHUNK_BYTES // 4, dtype=torch.float32, device=self._device)
        self._number = torch.zeros(1, dtype=torch.float64, device=self._device)

    def send(self, peer: int) -> None:
        dist.send(self._chunk, peer)

    def receive(self, peer: int) -> None:
        dist.recv(self._chunk, peer)

    def tell(self, peer: int, number: float) -> None:
        dist.send(self._number.fill_(number), peer)

    def hear(self, peer: int) -> float:
        dist.recv(self._number, peer)
        return float(self._number.item())

    def ring(self, count: int) -> None:
        for _ in range(count):
            dist.all_reduce(self._chunk)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        dist.destroy_process_group()
