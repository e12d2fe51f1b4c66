"""The thread that asks NVML, so that a driver which takes its time holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from agents.log import log
from agents.sample.nvml import GpuReader, Picture
from agents.wire import GpuStatus

SILENT_AFTER_SECONDS = 10.0
"""A driver that has not answered for this long is hung or close to it."""


class GpuSampler:
    """Takes a picture every interval and whenever asked to. The newest is always at hand."""

    def __init__(self, reader: GpuReader, interval_seconds: float, on_picture: Callable[[], None]) -> None:
        """`on_picture` is called from the sampler's thread after each picture."""
        self._reader = reader
        self._interval_seconds = interval_seconds
        self._on_picture = on_picture
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._asked_at: float | None = None
        self._picture = Picture()
        # A daemon: a call that hangs in the driver cannot be ended, and must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="understudy-gpus", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; a picture being taken is not waited for."""
        self._stopping.set()
        self._wanted.set()

    def take_now(self) -> None:
        self._wanted.set()

    def newest(self) -> Picture:
        """The last picture; when the driver has been silent for long, one that says so of every GPU."""
        picture, asked_at = self._picture, self._asked_at
        silent_seconds = 0.0 if asked_at is None else time.monotonic() - asked_at
        if silent_seconds < SILENT_AFTER_SECONDS:
            return picture
        problem = f"NVML has not answered for {silent_seconds:.0f} s"
        gpus = tuple(msgspec.structs.replace(gpu, status=GpuStatus.UNREADABLE, error=problem) for gpu in picture.gpus)
        return msgspec.structs.replace(picture, gpus=gpus, problems=(problem,))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.clear()
            started = time.monotonic()
            self._asked_at = started
            try:
                self._picture = self._reader.read()
            except Exception as error:  # noqa: BLE001 - bindings and drivers fail in ways of their own
                log.exception("gpus_not_read")
                problem = f"GPUs could not be read: {type(error).__name__}: {error}"
                self._picture = msgspec.structs.replace(self._picture, problems=(problem,))
            self._asked_at = None
            if self._stopping.is_set():
                return
            self._on_picture()
            self._wanted.wait(max(0.0, self._interval_seconds - (time.monotonic() - started)))
