"""Every reading of NVML that the agent takes, once: what it gave, how long it took, or which error it had.

A program of its own, because a process loads one driver library: the real one, or the fake one beside it.
"""

from __future__ import annotations

import sys
import time

import msgspec
import pynvml

from understudy_agent.sample.nvml import READINGS, Reading

TIMES = 3
"""The first call of a kind may take longer."""

Value = int | float | bool | str | None


class Read(msgspec.Struct, frozen=True):
    name: str
    milliseconds: list[float]
    values: dict[str, Value] = {}
    error: str = ""
    error_code: int = 0  # of NVML; 0: none


class GpuRead(msgspec.Struct, frozen=True):
    index: int
    readings: list[Read] = []
    error: str = ""  # why it cannot be read at all

    def values(self) -> dict[str, Value]:
        return {name: value for read in self.readings for name, value in read.values.items()}


class NodeRead(msgspec.Struct, frozen=True):
    driver_version: str = ""
    gpus: list[GpuRead] = []
    error: str = ""  # why NVML cannot be used


def read_node() -> NodeRead:
    try:
        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
        return NodeRead(version, [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())])
    except pynvml.NVMLError as error:
        return NodeRead(error=f"{error} (NVML error {error.value})")


def _gpu(index: int) -> GpuRead:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return GpuRead(index, error=f"{error} (NVML error {error.value})")
    return GpuRead(index, [_read(reading, handle) for reading in READINGS])


def _read(reading: Reading, handle: object) -> Read:
    milliseconds: list[float] = []
    values: dict[str, Value] = {}
    for _ in range(TIMES):
        begun = time.perf_counter()
        try:
            values = reading.read(handle)
        except pynvml.NVMLError as error:
            return Read(reading.name, [*milliseconds, _since(begun)], error=str(error), error_code=int(error.value))
        except ValueError as error:
            return Read(reading.name, [*milliseconds, _since(begun)], error=str(error))
        milliseconds.append(_since(begun))
    return Read(reading.name, milliseconds, values)


def _since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1000, 3)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read_node()) + b"\n")
