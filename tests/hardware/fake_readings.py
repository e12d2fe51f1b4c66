"""Readings of NVML that each kind of GPU answers, and from which driver on, as the fake NVML has it.

`python -m tests.hardware.fake_readings` writes `tests/data/readings.json`, of which a table in docs/signal-table.md is
made.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tests.hardware.parts import read_fake
from tests.testbed.fake_nvml import DRIVERS, H100, SHAPES, Shape
from understudy_agent.sample.nvml import READINGS

PATH = Path(__file__).resolve().parents[1] / "data" / "readings.json"
NEWEST = list(DRIVERS)[-1]
SECONDS_MAX = 60.0


class Answered(msgspec.Struct, frozen=True):
    reading: str
    fields: list[str]  # of `wire.Gpu`
    every_seconds: float  # 0: with each sample
    not_by: list[str]  # kinds of GPUs that do not answer, with the newest driver
    since: str  # the oldest driver of the fake with which an H100 answers; empty: with none


def fake_readings() -> list[Answered]:
    of_kind = {shape.gpu.get("name", "NVIDIA H100"): _answers(shape, NEWEST) for shape in SHAPES}
    of_driver = {driver: _answers(H100, driver) for driver in DRIVERS}
    return [
        Answered(
            reading.name,
            next((fields[reading.name] for fields in of_kind.values() if fields[reading.name]), []),
            reading.seconds,
            [_model(kind) for kind, fields in of_kind.items() if not fields[reading.name]],
            next((driver for driver, fields in of_driver.items() if fields[reading.name]), ""),
        )
        for reading in READINGS
    ]


def recorded() -> list[Answered]:
    return msgspec.json.decode(PATH.read_bytes(), type=list[Answered])


def _answers(shape: Shape, driver: str) -> dict[str, list[str]]:
    """Reading → the fields that it gave; empty: it was not answered, or with nothing."""
    (gpu,) = read_fake(shape, driver, SECONDS_MAX).gpus
    return {read.name: [name for name, value in read.values.items() if value is not None] for read in gpu.readings}


def _model(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" is A100."""
    return name.replace("-", " ").removeprefix("NVIDIA ").removeprefix("Tesla ").split()[0]


if __name__ == "__main__":
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(fake_readings()), indent=1) + b"\n")
    sys.stdout.write(f"wrote {PATH}\n")
