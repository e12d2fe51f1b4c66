"""The process that reads NVML, from inside: what it leaves behind in the driver, and how often it reads everything."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import pynvml
import pytest

from understudy_agent.sample import nvml, nvml_process
from understudy_agent.sample.nvml_process import Events, MessageWriter, Wakeup
from understudy_agent.sample.nvml_sample import NvmlSample

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
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    events.close()
    assert len(made) >= 4
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
        process.join(5)
    os.close(out)
    assert not process.is_alive()
    whole = [at for at, everything in reads if everything]
    assert len(whole) == 2 == len(reads) - 1
    assert whole[0] - begun < 0.5  # the first of them at once
    assert whole[1] - whole[0] >= nvml_process.EVERYTHING_INTERVAL_SECONDS


def test_a_reading_that_fails_is_reported_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handle: Any) -> nvml.Fields:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(nvml, "_FAST", ())
    monkeypatch.setattr(nvml, "_INTERVALS", (((lambda _: {"uuid": "GPU-0"}, fails), 60.0), ((lambda _: {},), 0.0)))
    reader = nvml.Nvml()
    for _ in range(2):
        assert "not all of it can be read" in reader._gpu(0).error
    monkeypatch.setattr(nvml, "_INTERVALS", (((lambda _: {},), 60.0), ((lambda _: {},), 0.0)))
    reader._read_at.clear()
    assert reader._gpu(0).error == ""
