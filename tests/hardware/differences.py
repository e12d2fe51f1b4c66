"""Differences of the real GPUs from the fake ones that the tests use."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hardware.readings import GpuRead, NodeRead, Read, Value
from tests.testbed.fake_nvml import DRIVERS, SHAPES, Shape

FIXED = {
    "name": 0.0,
    "sm_clock_max_mhz": 0.0,
    "power_limit_watts": 0.0,
    "memory_total_bytes": 0.05,
    "pcie_generation_max": 0.0,
    "pcie_width_max": 0.0,
    "nvlinks": 0.0,
}
"""Values that a kind of GPU always has → the share by which they may differ."""


def shape_of(name: str) -> Shape | None:
    """The fake's kind of this name, or the first whose model it names: "NVIDIA H200 NVL" is like "NVIDIA H200"."""
    names = {shape.gpu.get("name", "NVIDIA H100 80GB HBM3"): shape for shape in SHAPES}
    words = name.replace("-", " ").split()
    models = {own.replace("-", " ").split()[1]: shape for own, shape in names.items()}
    return names.get(name) or next((models[word] for word in words if word in models), None)


def driver_like(version: str) -> str:
    """The newest driver of the fake that is not newer than this one; else the oldest."""
    branch = int(version.partition(".")[0] or 0)
    known = sorted(DRIVERS, key=lambda one: int(one.partition(".")[0]))
    return next((one for one in reversed(known) if int(one.partition(".")[0]) <= branch), known[0])


def differences(real: NodeRead, fake: NodeRead) -> list[str]:
    """Differences of the first GPU: its node's others are of the same kind."""
    if real.error or not real.gpus:
        return [f"NVML cannot be used: {real.error or 'it lists no GPU'}"]
    return list(_of_gpu(real.gpus[0], fake.gpus[0]))


def _of_gpu(real: GpuRead, fake: GpuRead) -> Iterator[str]:
    if real.error:
        yield f"GPU {real.index} cannot be read: {real.error}"
        return
    faked = {read.name: read for read in fake.readings}
    for read in real.readings:
        yield from _of_reading(read, faked[read.name])
    own, other = real.values(), fake.values()
    for name, share in FIXED.items():
        if name in own and name in other and not _alike(own[name], other[name], share):
            yield f"{name}: {own[name]} here, {other[name]} in the fake"


def _of_reading(real: Read, fake: Read) -> Iterator[str]:
    if bool(real.error) != bool(fake.error) or real.error_code != fake.error_code:
        yield f"{real.name}: {real.error or 'answered'} here, {fake.error or 'answered'} in the fake"
        return
    for name in sorted(real.values.keys() ^ fake.values.keys()):
        yield f"{real.name}: {name} is only {'here' if name in real.values else 'in the fake'}"
    for name in sorted(real.values.keys() & fake.values.keys()):
        kinds = [type(values[name]).__name__ for values in (real.values, fake.values)]
        if kinds[0] != kinds[1]:
            yield f"{real.name}: {name} is of type {kinds[0]} here, of type {kinds[1]} in the fake"


def _alike(real: Value, fake: Value, share: float) -> bool:
    if isinstance(real, int | float) and isinstance(fake, int | float):
        return abs(real - fake) <= share * abs(fake)
    return real == fake
