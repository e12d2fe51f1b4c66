"""Measures the stages of a validation on this node. Those that cannot run here say why; nothing of the node is changed
but for a file that the disk stages write and delete.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from understudy_agent.sample.host import STA_UNSYNC, read_clock
from understudy_selfcheck.heat import HeatWatch, ReadGpus, by_nvml
from understudy_selfcheck.network import NetworkError, judge
from understudy_selfcheck.node import CheckOptions, NodeResult, check_node, measure_links
from understudy_selfcheck.pcie import LinkWatch
from understudy_selfcheck.peer_jobs import NetworkOrder, run_with_peers
from understudy_wire.stages import Stage, StageName, StageResult, StageStatus, judged

MIB = 2**20
BLOCK_BYTES = 4 * MIB
FILE_BYTES_MAX = 4096 * MIB
FILE_BYTES_MIN = 64 * MIB
DISK_SHARE = 0.05
"""Share of the free space that the disk stages may fill for a while."""

IN_MEMORY = ("tmpfs", "ramfs")
COPY_BYTES = 64 * MIB
TIMEOUT_FACTOR, TIMEOUT_SECONDS = 3.0, 120.0


class NotPossible(Exception):
    """The stage cannot run on this node. The message says why."""


class StageFailed(Exception):
    """It ran, and found a fault whatever its value. The message has it."""


class Outcome(NamedTuple):
    """Result of a stage that computes its own pass mark."""

    value: float
    mark: float
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """The node as the stages see it."""

    worker: Sequence[str]  # the command of `understudy_selfcheck.worker`
    environment: Mapping[str, str]
    gpus_expected: int | None = None
    mounts: Path = Path("/proc/mounts")
    slow_ratio: float | None = None
    network: NetworkOrder | None = None
    pci_devices: Path = Path("/sys/bus/pci/devices")
    read_gpus: ReadGpus = field(default_factory=by_nvml)


def run_stages(stages: Mapping[StageName, Stage], place: Place) -> list[StageResult]:
    """Runs those that are enabled, one after the other, also after one that failed."""
    return [_run(name, stages[name], run, place) for name, run in _RUNS.items() if stages[name].enabled]


def _run(name: StageName, stage: Stage, run: Callable[[Stage, Place], float | Outcome], place: Place) -> StageResult:
    begun = time.monotonic()
    try:
        value = run(stage, place)
    except NotPossible as error:
        status = StageStatus.FAILED if stage.required else StageStatus.NOT_POSSIBLE
        return StageResult(name, status, None, stage.pass_mark, time.monotonic() - begun, str(error))
    except (StageFailed, OSError, MemoryError) as error:
        seconds = time.monotonic() - begun
        return StageResult(name, StageStatus.FAILED, None, stage.pass_mark, seconds, str(error))
    seconds = time.monotonic() - begun
    if isinstance(value, Outcome):
        own = msgspec.structs.replace(stage, pass_mark=value.mark)
        return msgspec.structs.replace(judged(name, own, value.value, seconds), why=value.why)
    return judged(name, stage, value, seconds)


# -- clock ------------------------------------------------------------

STA_NANO = 0x2000


def _clock(stage: Stage, place: Place) -> float:  # noqa: ARG001
    """How far this clock is off at most, in milliseconds, as the kernel knows it from the time service."""
    _, found = read_clock()
    if found is None:
        raise NotPossible("the kernel does not say how far its clock is off")
    return clock_offset_ms(found.status, found.offset, found.esterror)


def clock_offset_ms(status: int, offset: int, error_microseconds: int) -> float:
    if status & STA_UNSYNC:
        raise NotPossible("no time service keeps the clock")
    return abs(offset) / (1e6 if status & STA_NANO else 1e3) + error_microseconds / 1e3


# -- processor and memory ------------------------------------------------------------


def _cpu(stage: Stage, place: Place) -> float:
    found = check_node(_options("cpu", stage, None, None, 0.0), place.worker, place.environment)
    return slowest_tflops(found, "float64") * 1000.0


def _gpu(stage: Stage, place: Place) -> Outcome:
    """Measures the slowest GPU, in its fastest format; a GPU that becomes too hot, or is slowed for it, has failed."""
    order = _options("cuda", stage, place.gpus_expected, place.slow_ratio, 0.25)
    with HeatWatch(place.read_gpus) as heat:
        tflops = slowest_tflops(check_node(order, place.worker, place.environment), None)
    if fault := heat.fault(stage.celsius_max):
        raise StageFailed(fault)
    return Outcome(tflops, stage.pass_mark, heat.words)


def _options(device: str, stage: Stage, gpus: int | None, slow_ratio: float | None, memory: float) -> CheckOptions:
    timeout = TIMEOUT_FACTOR * stage.seconds + TIMEOUT_SECONDS
    return CheckOptions(device, stage.seconds, memory, timeout, gpus, slow_ratio)


def slowest_tflops(found: NodeResult, kind: str | None) -> float:
    if found.status == "could_not_run":
        raise NotPossible("; ".join([*found.problems, *(one.problem for one in found.devices if one.problem)]))
    if found.status == "failed":
        wrong = [
            f"device {one.index or 0}: {one.problem or 'wrong results'}"
            for one in found.devices
            if one.status == "failed"
        ]
        raise StageFailed("; ".join([*found.problems, *wrong]))
    speeds = [
        [one.tflops for one in device.result.kinds if kind in (None, one.kind)]
        for device in found.devices
        if device.result is not None
    ]
    return min(max(of_device) for of_device in speeds)


def _memory(stage: Stage, place: Place) -> float:  # noqa: ARG001
    """How fast one processor copies memory: bytes read and bytes written, in GB/s."""
    left, right = bytearray(os.urandom(MIB)) * (COPY_BYTES // MIB), bytearray(COPY_BYTES)
    begun, copied = time.perf_counter(), 0
    while copied == 0 or time.perf_counter() - begun < stage.seconds:
        right[:] = left
        copied += COPY_BYTES
    seconds = time.perf_counter() - begun
    if right != left:
        raise StageFailed("a copy differs from its original")
    return 2 * copied / seconds / 1e9


# -- disk ------------------------------------------------------------


def _disk_write(stage: Stage, place: Place) -> float:
    """MB/s, until the data is on the disk."""
    with _scratch(stage, place) as (path, size):
        return _written(path, os.urandom(BLOCK_BYTES), size, stage.seconds)[0]


def _disk_read(stage: Stage, place: Place) -> float:
    """MB/s from the disk itself, not from the page cache, and whether it is what was written."""
    with _scratch(stage, place) as (path, size):
        block = os.urandom(BLOCK_BYTES)
        _, written = _written(path, block, size, stage.seconds)
        return read_back(path, block, written, stage.seconds)


@contextlib.contextmanager
def _scratch(stage: Stage, place: Place) -> Iterator[tuple[Path, int]]:
    """A file that does not exist yet, and how large it may become."""
    directory = Path(stage.path)
    if not directory.is_dir():
        raise NotPossible(f"there is no directory {directory}")
    kind = filesystem_of(directory, place.mounts.read_text(encoding="utf-8"))
    if kind in IN_MEMORY:
        raise NotPossible(f"{directory} is in memory ({kind})")
    free = shutil.disk_usage(directory).free
    size = min(FILE_BYTES_MAX, int(free * DISK_SHARE)) // BLOCK_BYTES * BLOCK_BYTES
    if size < FILE_BYTES_MIN:
        raise NotPossible(f"{directory} has too little free space")
    path = directory / f".understudy-disk-{secrets.token_hex(16)}"  # a name that no user can take before
    try:
        yield path, size
    finally:
        path.unlink(missing_ok=True)


def filesystem_of(directory: Path, mounts: str) -> str:
    """The file system with the longest mount point that contains it."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        point = words[1].replace("\\040", " ") if len(words) > 2 else ""
        inside = point and (directory == Path(point) or Path(point) in directory.resolve().parents)
        if inside and len(point) >= best:
            best, kind = len(point), words[2]
    return kind


def _written(path: Path, block: bytes, size: int, seconds: float) -> tuple[float, int]:
    """MB/s, and how many bytes: this block, repeatedly."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        begun, done = time.perf_counter(), 0
        while done < size and (done < FILE_BYTES_MIN or time.perf_counter() - begun < seconds):
            written = os.write(handle, block)
            if written != BLOCK_BYTES:
                raise StageFailed("the disk is full")
            done += written
            if done % (16 * BLOCK_BYTES) == 0:
                os.fdatasync(handle)
        os.fdatasync(handle)
        return done / (time.perf_counter() - begun) / 1e6, done
    finally:
        os.close(handle)


def read_back(path: Path, written: bytes, size: int, seconds: float) -> float:
    """MB/s of a file that repeats one block."""
    handle = _past_the_cache(path)
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as block:  # its address suits O_DIRECT
            begun, done = time.perf_counter(), 0
            while done < size and (done == 0 or time.perf_counter() - begun < seconds):
                if os.preadv(handle, [block], done) != BLOCK_BYTES:
                    raise StageFailed("the file is shorter than what was written")
                if block[:] != written:
                    raise StageFailed("what is read differs from what was written")
                done += BLOCK_BYTES
            return done / (time.perf_counter() - begun) / 1e6
    finally:
        os.close(handle)


def _past_the_cache(path: Path) -> int:
    """Open to read; where the file system takes no O_DIRECT, what it keeps of the file in memory is dropped once."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            try:
                os.preadv(handle, [page], 0)
            except OSError:
                os.close(handle)
                raise
    except OSError:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return handle


# -- links of GPUs ------------------------------------------------------------


def _pcie(stage: Stage, place: Place) -> float:
    """Rate from the host's memory to the slowest GPU, in GB/s, over links of full width and speed."""
    with LinkWatch(place.pci_devices) as links:
        gbps = _link("pcie", stage, place)
    degraded = links.degraded()
    if degraded:
        raise StageFailed(degraded)
    return gbps


def _nvlink(stage: Stage, place: Place) -> float:
    """Rate between the slowest two GPUs, in GB/s."""
    return _link("nvlink", stage, place)


def _link(kind: str, stage: Stage, place: Place) -> float:
    timeout = TIMEOUT_FACTOR * stage.seconds + TIMEOUT_SECONDS
    answer = measure_links([*place.worker, kind, str(stage.seconds)], place.environment, timeout)
    if answer.cannot_run:
        raise NotPossible(answer.cannot_run)
    if answer.failure:
        raise StageFailed(answer.failure)
    return answer.gbps


def _network(stage: Stage, place: Place) -> Outcome:
    """The median over its peers, in GB/s, beside what the peers exchange with each other and what is usual."""
    order = place.network
    if order is None or not order.peers:
        raise NotPossible("there is no idle peer")
    try:
        rates = run_with_peers(order, stage.seconds, place.environment)
    except (NetworkError, OSError) as error:
        raise NotPossible(str(error)) from error
    verdict = judge(rates, stage.pass_mark, order.usual)
    if verdict.value is None:
        raise NotPossible(verdict.why)
    return Outcome(verdict.value, float(f"{verdict.mark:.4g}"), verdict.why)


_RUNS: Mapping[StageName, Callable[[Stage, Place], float | Outcome]] = {
    StageName.CLOCK: _clock,
    StageName.CPU: _cpu,
    StageName.MEMORY: _memory,
    StageName.DISK_WRITE: _disk_write,
    StageName.DISK_READ: _disk_read,
    StageName.PCIE: _pcie,
    StageName.NVLINK: _nvlink,
    StageName.GPU: _gpu,
    StageName.NETWORK: _network,
}
