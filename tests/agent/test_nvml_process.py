"""The process that reads NVML, from inside: what it leaves behind in the driver, and how often it reads everything."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pynvml
import pytest

from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_agent.sample import nvml, nvml_process
from understudy_agent.sample.nvml_process import Events, MessageWriter, Wakeup
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_wire.hardware import Gpu, GpuStatus

pytestmark = pytest.mark.integration


def test_no_event_set_is_left_in_the_driver_by_a_gpu_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    freed: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    def wait(events: int, milliseconds: int) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(nvml_process, "EVENT_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", make)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", freed.append)
    events = Events(MessageWriter(-1), Wakeup())
    events.open([])
    wait_until(lambda: len(made) >= 4)
    events.close()
    assert freed == made


def test_many_requests_read_everything_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[float, bool]] = []

    class Quick:
        def __init__(self, *_: object) -> None: ...

        def read(self, everything: bool) -> NvmlSample:
            reads.append((time.monotonic(), everything))
            return NvmlSample()

    reading, writing = os.pipe()
    out = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(nvml_process, "Nvml", Quick)
    with os.fdopen(reading) as agent:
        monkeypatch.setattr(sys, "stdin", agent)
        process = threading.Thread(target=nvml_process._run, args=(MessageWriter(out), 30.0))
        process.start()
        begun = time.monotonic()
        while time.monotonic() < begun + 1.5:
            os.write(writing, b"now\n")
            time.sleep(0.005)
        os.close(writing)
        process.join(PATIENCE_SECONDS)
    os.close(out)
    assert not process.is_alive()
    whole = [at for at, everything in reads if everything]
    assert len(whole) == 2 == len(reads) - 1
    assert whole[0] - begun < 0.5  # the first of them at once
    assert whole[1] - whole[0] >= nvml_process.EVERYTHING_INTERVAL_SECONDS


INTERVALS = {"power_watts": nvml.FAST_SECONDS, "sm_clock_mhz": nvml.FAST_SECONDS, "uuid": nvml.SLOW_SECONDS}


class Driver:
    """One GPU's readings: each answers with its value, or fails with the nvmlReturn of its name in `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        self.fails: dict[str, int] = {}
        self.asked: list[str] = []
        readings = tuple(nvml.Reading(name, every, self._of(name)) for name, every in INTERVALS.items())
        self.reader = nvml.GpuReader(readings)

    def _of(self, name: str) -> Callable[[Any], nvml.Fields]:
        def read(handle: Any) -> nvml.Fields:
            self.asked.append(name)
            if name in self.fails:
                raise pynvml.NVMLError(self.fails[name])
            return {name: "GPU-0" if name == "uuid" else 5}

        return read

    def read(self, now: float, everything: bool = False) -> Gpu:
        self.asked.clear()
        return self.reader.read(0, now, everything)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_a_reading_that_fails_is_named_and_unknown_until_it_succeeds(driver: Driver) -> None:
    driver.read(0.0)
    driver.fails["power_watts"] = pynvml.NVML_ERROR_UNKNOWN
    gpu = driver.read(2.0)
    assert (gpu.status, gpu.power_watts, gpu.sm_clock_mhz, gpu.uuid) == (GpuStatus.OK, None, 5, "GPU-0")
    assert "power_watts" in gpu.error and "NVML error 999" in gpu.error
    driver.fails.clear()
    assert driver.read(4.0) == Gpu(0, GpuStatus.OK, "GPU-0", power_watts=5, sm_clock_mhz=5)


def test_what_a_driver_does_not_know_is_asked_again_rarely(driver: Driver) -> None:
    driver.fails["power_watts"] = pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert driver.read(0.0).error == ""
    driver.read(2.0, everything=True)
    assert driver.asked == ["sm_clock_mhz", "uuid"]
    driver.read(nvml.RARE_SECONDS)
    assert "power_watts" in driver.asked


def test_a_gpu_keeps_its_identity_when_it_cannot_be_read_again(driver: Driver) -> None:
    driver.read(0.0)
    driver.fails["uuid"] = pynvml.NVML_ERROR_UNKNOWN
    gpu = driver.read(nvml.SLOW_SECONDS)
    assert (gpu.status, gpu.uuid) == (GpuStatus.OK, "GPU-0")


@pytest.mark.parametrize("name", ["serial", "name", "board_part_number", "vbios", "uuid"])
def test_a_text_of_the_hardware_is_read_as_a_report_can_have_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An agent that cannot decode a sample would start the process that reads NVML without end."""
    for function in ("Serial", "Name", "BoardPartNumber", "VbiosVersion", "UUID"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{function}", lambda _: "16\x01" + "x" * 300)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    readings = tuple(one for one in nvml.READINGS if one.name == name)
    gpu = nvml.GpuReader(readings).read(0, 0.0, everything=True)
    assert getattr(gpu, name).startswith("16 xxx")
    assert msgspec.json.decode(msgspec.json.encode(gpu), type=Gpu) == gpu


def test_a_number_that_is_not_available_is_none(driver: Driver) -> None:
    reading = nvml.Reading("power_watts", 0.0, lambda _: {"power_watts": (2**32 - 1) / 1000, "sm_clock_mhz": 2**32 - 1})
    gpu = nvml.GpuReader((reading,)).read(0, 0.0, everything=False)
    assert (gpu.power_watts, gpu.sm_clock_mhz) == (None, None)


def test_what_was_read_before_a_gpu_was_lost_goes_with_the_report(driver: Driver) -> None:
    driver.read(0.0)
    driver.fails["sm_clock_mhz"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(pynvml.NVMLError):
        driver.read(2.0)
    assert driver.reader.last_known() == {"uuid": "GPU-0", "power_watts": 5}


@pytest.mark.parametrize("result", [pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_gpu_that_cannot_be_named_is_no_gpu_that_is_well(driver: Driver, result: int) -> None:
    driver.fails["uuid"] = result
    with pytest.raises(pynvml.NVMLError):
        driver.read(0.0)
