"""The process that reads NVML, so that a driver that hangs does not stop the agent.

The agent starts it (`python -m understudy_agent.sample.nvml_process`), reads its samples and events from its standard
output, a JSON line each, and writes a line to its standard input to request a sample of everything at once. It ends
with the agent: when its standard input ends, and by a signal of the kernel when the agent is killed during a call into
the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from typing import Any

import msgspec
import pynvml

from understudy_agent.sample.nvml import Nvml
from understudy_agent.sample.nvml_sample import Message, NvmlEvent
from understudy_wire.pci import normal_bus_id

PR_SET_PDEATHSIG = 1
EVENT_WAIT_MILLISECONDS = 2000
EVENT_WAIT_ENDS_SECONDS = 5.0
EVENT_RETRY_SECONDS = 10.0

EVERYTHING_INTERVAL_SECONDS = 1.0
"""Each of many kernel log lines requests a sample of everything; that is taken at this interval at most."""

EVENT_KINDS = 0x8 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""nvmlEventType: Xid, storm of corrected errors, retirement and its failure, poison (two kinds), GPU unavailable,
recovery action. Kinds that a GPU or its driver does not support are left out."""


class Events:
    """A thread that waits for NVML's events while NVML is initialised."""

    def __init__(self, send: MessageWriter, wakeup: Wakeup) -> None:
        self._send = send
        self._wakeup = wakeup
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, handles: list[Any]) -> None:
        self._stopping = threading.Event()
        arguments = (handles, self._stopping)
        self._thread = threading.Thread(target=self._follow, args=arguments, name="nvml-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """NVML must not be shut down during a call that waits in it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(EVENT_WAIT_ENDS_SECONDS)

    def _follow(self, handles: list[Any], stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                events = _event_set(handles)
                try:
                    self._wait(events, stopping)
                finally:
                    _free(events)
            except pynvml.NVMLError as error:
                if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    return  # the kernel log and the samples remain
                self._wakeup.request()
                stopping.wait(EVENT_RETRY_SECONDS)

    def _wait(self, events: Any, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                continue
            self._send(NvmlEvent(time.time(), int(data.eventType), int(data.eventData), _bus_id(data.device)))
            self._wakeup.request()


class MessageWriter:
    """Writes messages to the agent, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        line = memoryview(msgspec.json.encode(message) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class Wakeup:
    """Wakes the main thread for a sample of everything."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def request(self) -> None:
        try:
            os.write(self._writing, b"\n")
        except BlockingIOError:
            return  # it is already requested


def _event_set(handles: list[Any]) -> Any:
    events = pynvml.nvmlEventSetCreate()
    for handle in handles:
        try:
            kinds = EVENT_KINDS & int(pynvml.nvmlDeviceGetSupportedEventTypes(handle))
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
        except pynvml.NVMLError:  # the sample reports a GPU that fails; the others' events are still needed
            continue
    return events


def _free(events: Any) -> None:
    with contextlib.suppress(pynvml.NVMLError):  # a driver that is gone has freed it
        pynvml.nvmlEventSetFree(events)


def _bus_id(device: Any) -> str:
    try:
        bus_id = pynvml.nvmlDeviceGetPciInfo(device).busId
    except pynvml.NVMLError:
        return ""
    return normal_bus_id(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id))


def die_with(parent: int) -> None:
    """The kernel kills this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # it ended before the call


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="understudy_agent.sample.nvml_process", description="Read NVML for the agent."
    )
    parser.add_argument("--interval", type=float, required=True, help="seconds between samples")
    parser.add_argument("--parent", type=int, required=True, help="the agent's process id")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the agent, which ends this process
    die_with(options.parent)
    # Anything else that writes to standard output, such as a library of the driver, goes to the log.
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _run(MessageWriter(output), options.interval)
    except BrokenPipeError:
        return 0  # the agent has ended
    return 0


def _run(send: MessageWriter, interval_seconds: float) -> None:
    wakeup = Wakeup()
    events = Events(send, wakeup)
    nvml = Nvml(events.open, events.close)
    agent = sys.stdin.fileno()
    requested, everything_at = False, float("-inf")
    while True:
        begun = time.monotonic()
        everything = requested and begun >= everything_at + EVERYTHING_INTERVAL_SECONDS
        if everything:
            requested, everything_at = False, begun
        send(nvml.read(everything))
        until = begun + interval_seconds
        while True:
            if requested:
                until = min(until, everything_at + EVERYTHING_INTERVAL_SECONDS)
            left = until - time.monotonic()
            ready, _, _ = select.select([agent, wakeup.reading], [], [], max(0.0, left))
            for descriptor in ready:
                if not os.read(descriptor, 4096) and descriptor == agent:
                    return
            requested = requested or bool(ready)
            if left <= 0 or not ready:
                break


if __name__ == "__main__":
    sys.exit(main())
