"""The child that uses the device: `python -m understudy_selfcheck.worker list | DEVICE SECONDS MEMORY_SHARE |
pcie SECONDS | nvlink SECONDS`. On stdout one line when it has imported what it needs, and its answer as a line of JSON.

A process of its own, because a call into a broken driver may never return.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from understudy_selfcheck.backend import Backend, CannotRun
from understudy_selfcheck.check import Extent, Result, check

GPU_SIZE, GPU_DEPTH = 8192, 4096
CPU_SIZE, CPU_DEPTH = 512, 1024


class GpuList(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many GPUs torch can use here. When torch does not report it, `cannot_look` has the cause."""

    gpus: int
    cannot_look: str = ""


class WorkerResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """`result` is None when the device failed during the check (`failure`), or the check cannot run (`cannot_run`)."""

    backend: str = ""
    device_name: str = ""
    uuid: str = ""
    result: Result | None = None
    failure: str = ""
    cannot_run: str = ""


class LinkResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """How fast the slowest link is. `failure` and `cannot_run` as above."""

    gbps: float = 0.0
    failure: str = ""
    cannot_run: str = ""


LINKS = ("pcie", "nvlink")


def main(arguments: Sequence[str] | None = None) -> int:
    options = list(sys.argv[1:] if arguments is None else arguments)
    if options == ["list"]:
        _write(list_gpus())
        return 0
    if options[0] in LINKS:
        _write(measure_links(options[0], float(options[1])))
        return 0
    device, seconds, memory_share = options
    _write(run(device, Extent(float(seconds), float(memory_share))))
    return 0


def list_gpus() -> GpuList:
    try:
        import torch
    except ImportError as error:
        return GpuList(0, f"torch cannot be imported: {error}")
    _loaded()
    if torch.version.cuda is None:
        return GpuList(0, "this torch was built without CUDA")
    return GpuList(torch.cuda.device_count() if torch.cuda.is_available() else 0)


def run(device: str, extent: Extent) -> WorkerResult:
    try:
        backend = choose(device)
    except CannotRun as error:
        return WorkerResult(cannot_run=str(error))
    except RuntimeError as error:
        return WorkerResult(failure=str(error)[:2000])
    found = WorkerResult(backend.name, backend.device_name, backend.uuid)
    try:
        return replace(found, result=check(backend, extent, time.perf_counter))
    except MemoryError as error:
        return replace(found, cannot_run=f"not enough memory is free: {error}")
    except RuntimeError as error:  # what torch raises when the device itself fails
        problem = f"{type(error).__name__}: {error}"[:2000]
        if type(error).__name__ == "OutOfMemoryError":
            return replace(found, cannot_run=problem)
        return replace(found, failure=problem)


def measure_links(kind: str, seconds: float) -> LinkResult:
    try:
        from understudy_selfcheck.torch_links import gbps
    except ImportError as error:
        return LinkResult(cannot_run=f"torch cannot be imported: {error}")
    _loaded()
    try:
        return LinkResult(gbps(kind, seconds))
    except CannotRun as error:
        return LinkResult(cannot_run=str(error))
    except RuntimeError as error:
        return LinkResult(failure=f"{type(error).__name__}: {error}"[:2000])


def choose(device: str) -> Backend:
    """Raises CannotRun, and RuntimeError when the device itself is at fault."""
    try:
        from understudy_selfcheck.torch_backend import TorchBackend
    except ImportError as error:
        if device == "cuda":
            raise CannotRun(f"GPUs are checked with torch, which cannot be imported: {error}") from error
    else:
        _loaded()
        if device == "cuda":
            return TorchBackend("cuda", GPU_SIZE, GPU_DEPTH)
        return TorchBackend("cpu", CPU_SIZE, CPU_DEPTH)
    try:
        from understudy_selfcheck.numpy_backend import NumpyBackend
    except ImportError as error:
        raise CannotRun(f"neither torch nor numpy can be imported here: {error}") from error
    _loaded()
    return NumpyBackend(CPU_SIZE, CPU_DEPTH)


def _loaded() -> None:
    sys.stdout.write("loaded\n")
    sys.stdout.flush()


def _write(answer: GpuList | WorkerResult | LinkResult) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
