"""How fast the GPUs' links are, with torch. Written from its documentation: never tried on hardware."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from understudy_selfcheck.backend import CannotRun

BYTES = 256 * 2**20


def gbps(kind: str, seconds: float) -> float:
    """Rate of the slowest link. Raises CannotRun, and RuntimeError where a device is at fault."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise CannotRun("torch finds no GPU that it can use")
    copies = list(_from_host() if kind == "pcie" else _between_gpus())
    if not copies:
        raise CannotRun("there is one GPU alone")
    return min(_rate(copy, device, seconds / len(copies)) for device, copy in copies)


def _from_host() -> Iterator[tuple[int, Callable[[], object]]]:
    host = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    for index in range(torch.cuda.device_count()):
        target = torch.empty(BYTES, dtype=torch.uint8, device=f"cuda:{index}")
        yield index, lambda target=target: target.copy_(host, non_blocking=True)  # type: ignore[misc]


def _between_gpus() -> Iterator[tuple[int, Callable[[], object]]]:
    """Each GPU to the next one."""
    count = torch.cuda.device_count()
    for index in range(count if count > 1 else 0):
        following = (index + 1) % count
        if not torch.cuda.can_device_access_peer(index, following):
            raise CannotRun("the GPUs cannot reach each other's memory")
        source = torch.ones(BYTES, dtype=torch.uint8, device=f"cuda:{index}")
        target = torch.empty(BYTES, dtype=torch.uint8, device=f"cuda:{following}")
        yield index, lambda source=source, target=target: target.copy_(source, non_blocking=True)  # type: ignore[misc]


def _rate(copy: Callable[[], object], device: int, seconds: float) -> float:
    copy()
    torch.cuda.synchronize(device)
    begun, done = time.perf_counter(), 0
    while done == 0 or time.perf_counter() - begun < seconds:
        copy()
        torch.cuda.synchronize(device)
        done += BYTES
    return done / (time.perf_counter() - begun) / 1e9
