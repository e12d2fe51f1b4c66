"""The agent's side of the process that reads NVML: starts it, reads its output, kills it when it stops answering, and
starts it again.

An administrator or a script that resets a GPU can stop it for a while: NVML keeps the device files open, which prevents
a reset.

There is never more than one. A process that hangs inside the kernel cannot be killed and is left as it is: the agent
starts no second one, because it would hang too. The newest sample is always available, and how long NVML has not
answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from understudy_agent.log import fields, log
from understudy_agent.sample.gpu_history import GpuHistory
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.nvml_sample import Message, NvmlEvent, NvmlSample
from understudy_wire.values import NOT_UNDERSTOOD

LINE_BYTES_MAX = 1 << 20
SUPERVISE_SECONDS = 1.0

RELEASE_FILE = "release-nvml"
"""File in the run directory. While it exists no process uses NVML."""

RELEASE_SECONDS_MAX = 600.0
"""An older file was left behind and is ignored."""

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long the driver may take, and what follows. Seconds."""

    silent_after: float = 10.0  # a driver that has not answered for this time hangs or soon will
    kill_after: float = 30.0
    unkillable_after: float = 5.0  # a process ends at once after SIGKILL, unless it hangs in the kernel
    restart_first: float = 1.0
    restart_most: float = 60.0


class GpuSource:
    """Shows no GPUs, where the configuration of the node disables NVML."""

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None:
        """Called in the event loop. `on_news`: a requested sample is there, or one with a GPU in another state."""

    def stop(self) -> None:
        """Returns at once, also while a reading is in progress."""

    def take_now(self) -> None:
        """Requests a sample of everything."""

    def newest(self) -> NvmlSample:
        return NvmlSample()

    def silent_seconds(self) -> float:
        return 0.0

    def unkillable(self) -> bool:
        return False


class GpuProcess(GpuSource):
    def __init__(
        self,
        hardware: HardwareHistory,
        interval_seconds: float,
        bounds: Bounds | None = None,
        command: Sequence[str] = (sys.executable, "-m", "understudy_agent.sample.nvml_process"),
        environment: dict[str, str] | None = None,
        kill: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
    ) -> None:
        """`kill` sends SIGKILL; a test replaces it with a kernel that does not end the process."""
        self._history = GpuHistory(hardware)
        self._interval_seconds = interval_seconds
        self._bounds = bounds or Bounds()
        self._command = [*command, "--interval", str(interval_seconds)]
        self._environment = environment
        self._send_kill = kill
        self._release = hardware.path.with_name(RELEASE_FILE)
        self._released = False  # the release file existed at the last check
        self._stopped = False  # the process was stopped for a release, and the next one has not answered yet
        self._sample = NvmlSample()
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._answered_at = 0.0
        self._killed_at: float | None = None
        self._spawned_at = 0.0
        self._start_at = 0.0
        self._failures = 0
        self._requested = False
        self._problem = ""
        self._supervising: asyncio.Task[None] | None = None
        self._on_news: Callable[[], None] = lambda: None
        self._on_event: Callable[[NvmlEvent], None] = lambda _: None

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None:
        self._on_news, self._on_event = on_news, on_event
        self._answered_at = time.monotonic()
        self._released = self._stopped = self._release_requested()
        if not self._released:
            self._spawn()
        self._supervising = asyncio.get_running_loop().create_task(self._supervise())

    def stop(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
        if self._process is not None:
            self._close_pipes(self._process)
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self._process.wait(0.2)
            self._process = None

    def take_now(self) -> None:
        self._requested = True
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        with contextlib.suppress(OSError):  # full, or it has just ended: the next sample reads everything anyway
            os.write(process.stdin.fileno(), b"now\n")

    def newest(self) -> NvmlSample:
        """The last sample; when the driver has not answered for long, one with unreadable GPUs and the cause."""
        silent_seconds = self.silent_seconds()
        if not silent_seconds and not self._stopped:
            return self._sample
        if not silent_seconds:
            return self._history.unanswered(self._sample, "NVML is not read at the moment: a GPU is being reset")
        problem = f"NVML has not answered for {silent_seconds:.0f} s"
        if self.unkillable():
            problem += ", and the process that reads it hangs in the kernel and cannot be killed"
        elif self._problem:
            problem += f"; {self._problem}"
        return self._history.unanswered(self._sample, problem)

    def silent_seconds(self) -> float:
        if self._released:
            return 0.0
        late = time.monotonic() - self._answered_at - self._interval_seconds
        return late if late > self._bounds.silent_after else 0.0

    def unkillable(self) -> bool:
        return self._killed_at is not None and time.monotonic() - self._killed_at > self._bounds.unkillable_after

    def _spawn(self) -> None:
        self._unread = b""
        self._spawned_at = time.monotonic()
        try:
            process = subprocess.Popen(
                [*self._command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                bufsize=0,
            )
        except OSError as error:
            self._failed(f"the process that reads NVML cannot be started: {error}")
            return
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process
        asyncio.get_running_loop().add_reader(process.stdout.fileno(), self._read_output)

    def _read_output(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        try:
            part = os.read(process.stdout.fileno(), 1 << 18)
        except BlockingIOError:
            return
        if not part:
            self._close_pipes(process)
            self._reap()
            return
        *lines, self._unread = (self._unread + part).split(b"\n")
        try:
            if len(self._unread) > LINE_BYTES_MAX:
                raise msgspec.DecodeError(f"a line of more than {LINE_BYTES_MAX} bytes")
            for line in lines:
                self._take(_decoder.decode(line))
        except NOT_UNDERSTOOD as error:
            self._problem = f"the process that reads NVML wrote what cannot be decoded: {error}"
            self._kill(process)

    def _take(self, message: Message) -> None:
        if isinstance(message, NvmlEvent):
            self._on_event(message)
            return
        self._answered_at = time.monotonic()
        self._failures, self._problem, self._stopped = 0, "", False
        before = {gpu.index: (gpu.status, gpu.uuid, gpu.recovery_action) for gpu in self._sample.gpus}
        self._sample = self._history.add(message, self._answered_at)
        after = {gpu.index: (gpu.status, gpu.uuid, gpu.recovery_action) for gpu in self._sample.gpus}
        if self._requested or before != after:
            self._requested = False
            self._on_news()

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(SUPERVISE_SECONDS)
            now = time.monotonic()
            released, self._released = self._released, self._release_requested()
            if released or self._released:
                self._answered_at = now  # no answer was due until now
            if self._released:
                self._stop_for_release()
            elif self._process is None:
                if now >= self._start_at:
                    self._spawn()
            elif self._process.poll() is not None:
                self._reap()
            elif self._killed_at is None and self._unanswered_for(now) > self._bounds.kill_after:
                log.error("nvml_killed", extra=fields(pid=self._process.pid, silent_seconds=self.silent_seconds()))
                self._problem = f"the process that reads it was killed after {self._bounds.kill_after:g} s"
                self._kill(self._process)

    def _release_requested(self) -> bool:
        try:
            return time.time() - self._release.stat().st_mtime < RELEASE_SECONDS_MAX
        except OSError:
            return False

    def _stop_for_release(self) -> None:
        """The next process starts as soon as the release ends."""
        if not self._stopped:
            log.info("nvml_released", extra=fields(path=self._release))
        self._stopped, self._start_at = True, 0.0
        process = self._process
        if process is None:
            return
        if process.poll() is not None:
            self._close_pipes(process)
            self._process, self._killed_at = None, None
        elif self._killed_at is None:
            self._kill(process)

    def _unanswered_for(self, now: float) -> float:
        """How long this process has not answered, in seconds."""
        return now - max(self._answered_at, self._spawned_at) - self._interval_seconds

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._close_pipes(process)
        self._send_kill(process)
        self._killed_at = time.monotonic()

    def _reap(self) -> None:
        """The process has ended, or is about to: its output has ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            if self._killed_at is None:
                self._kill(process)
            return  # the next check finds it ended
        problem = self._problem or f"the process that reads NVML ended with {process.returncode}"
        self._close_pipes(process)
        self._process, self._killed_at = None, None
        self._failed(problem)

    def _failed(self, problem: str) -> None:
        """Starts the next process after a pause, which doubles each time."""
        log.warning("nvml_process_ended", extra=fields(error=problem, count=self._failures))
        self._problem = problem
        wait = min(self._bounds.restart_first * 2**self._failures, self._bounds.restart_most)
        self._failures += 1
        self._start_at = time.monotonic() + wait

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None and not process.stdout.closed:
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
