"""The agent's side of the process that asks NVML: starts it, hears it, kills it when it falls silent, starts it again.

Somebody who resets a GPU may send it away for a while: NVML keeps the device files open, which forbids a reset.

There is never more than one. A process that hangs inside the kernel cannot be killed and is left as it is: nothing is
started beside it, because it would hang there too. Whatever happens, the newest picture is at hand, and how long NVML
has owed the next one.
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
from typing import Protocol

import msgspec

from understudy_agent.log import fields, log
from understudy_agent.sample.gpu_history import GpuHistory
from understudy_agent.sample.hardware_history import Memory
from understudy_agent.sample.nvml_sample import Message, NvmlEvent, Picture
from understudy_agent.wire import NOT_UNDERSTOOD

LINE_BYTES_MAX = 1 << 20
SUPERVISE_SECONDS = 1.0

RELEASE_FILE = "release-nvml"
"""In the run directory. While it is there NVML is let go of: no process asks it."""

RELEASE_SECONDS_MAX = 600.0
"""Who made an older one is gone and has forgotten it."""

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long the driver may take, and what comes then. Seconds."""

    silent_after: float = 10.0  # a driver that has not answered for so long is hung or close to it
    kill_after: float = 30.0
    unkillable_after: float = 5.0  # a process is gone at once after SIGKILL, unless the kernel holds it
    restart_first: float = 1.0
    restart_most: float = 60.0


class GpuSource(Protocol):
    """Where the agent has its GPUs from."""

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None:
        """In the agent's event loop. `on_news`: a picture that was asked for, or one with a GPU in another state."""
        ...

    def stop(self) -> None:
        """Returns at once; nothing being read is waited for."""
        ...

    def take_now(self) -> None: ...

    def newest(self) -> Picture: ...

    def silent_seconds(self) -> float: ...

    def unkillable(self) -> bool: ...


class NoGpus:
    """For nodes where the configuration switches NVML off."""

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None: ...

    def stop(self) -> None: ...

    def take_now(self) -> None: ...

    def newest(self) -> Picture:
        return Picture()

    def silent_seconds(self) -> float:
        return 0.0

    def unkillable(self) -> bool:
        return False


class GpuProcess:
    def __init__(
        self,
        memory: Memory,
        interval_seconds: float,
        bounds: Bounds | None = None,
        command: Sequence[str] = (sys.executable, "-m", "understudy_agent.sample.nvml_process"),
        environment: dict[str, str] | None = None,
        kill: Callable[[subprocess.Popen[bytes]], None] = subprocess.Popen.kill,
    ) -> None:
        """`kill` sends SIGKILL, or is what stands in for a kernel that does not let go of the process."""
        self._memory = memory
        self._history = GpuHistory(memory)
        self._interval_seconds = interval_seconds
        self._bounds = bounds or Bounds()
        self._command = [*command, "--interval", str(interval_seconds)]
        self._environment = environment
        self._send_kill = kill
        self._release = memory.path.with_name(RELEASE_FILE)
        self._held = False  # it was there at the last look
        self._away = False  # the process was sent away, and the next one is not heard yet
        self._picture = Picture()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._answered_at = 0.0
        self._killed_at: float | None = None
        self._spawned_at = 0.0
        self._start_at = 0.0
        self._failures = 0
        self._asked = False
        self._problem = ""
        self._supervising: asyncio.Task[None] | None = None
        self._on_news: Callable[[], None] = lambda: None
        self._on_event: Callable[[NvmlEvent], None] = lambda _: None

    def start(self, on_news: Callable[[], None], on_event: Callable[[NvmlEvent], None]) -> None:
        self._on_news, self._on_event = on_news, on_event
        self._answered_at = time.monotonic()
        self._held = self._away = self._released()
        if not self._held:
            self._spawn()
        self._supervising = asyncio.get_running_loop().create_task(self._supervise())

    def stop(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
        if self._process is not None:
            self._close_pipes(self._process)
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it; it dies when it may
                self._process.wait(0.2)
            self._process = None

    def take_now(self) -> None:
        self._asked = True
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        with contextlib.suppress(OSError):  # full, or it has just ended: the next picture is of everything anyway
            os.write(process.stdin.fileno(), b"now\n")

    def newest(self) -> Picture:
        """The last picture; when the driver has been silent for long, one that says so of every GPU."""
        silent_seconds = self.silent_seconds()
        if not silent_seconds and not self._away:
            return self._picture
        if not silent_seconds:
            return self._history.silent(self._picture, "NVML is not asked just now: a GPU is being reset")
        problem = f"NVML has not answered for {silent_seconds:.0f} s"
        if self.unkillable():
            problem += ", and the process that asks it hangs in the kernel and cannot be killed"
        elif self._problem:
            problem += f"; {self._problem}"
        return self._history.silent(self._picture, problem)

    def silent_seconds(self) -> float:
        if self._held:
            return 0.0
        owed = time.monotonic() - self._answered_at - self._interval_seconds
        return owed if owed > self._bounds.silent_after else 0.0

    def unkillable(self) -> bool:
        return self._killed_at is not None and time.monotonic() - self._killed_at > self._bounds.unkillable_after

    def _spawn(self) -> None:
        self._heard = b""
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
            self._failed(f"the process that asks NVML cannot be started: {error}")
            return
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process
        asyncio.get_running_loop().add_reader(process.stdout.fileno(), self._hear)

    def _hear(self) -> None:
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
        *lines, self._heard = (self._heard + part).split(b"\n")
        try:
            if len(self._heard) > LINE_BYTES_MAX:
                raise msgspec.DecodeError(f"a line of more than {LINE_BYTES_MAX} bytes")
            for line in lines:
                self._take(_decoder.decode(line))
        except NOT_UNDERSTOOD as error:
            self._problem = f"the process that asks NVML cannot be understood: {error}"
            self._kill(process)

    def _take(self, message: Message) -> None:
        if isinstance(message, NvmlEvent):
            self._on_event(message)
            return
        self._answered_at = time.monotonic()
        self._failures, self._problem, self._away = 0, "", False
        before = {gpu.index: (gpu.status, gpu.uuid, gpu.recovery_action) for gpu in self._picture.gpus}
        self._picture = self._history.add(message, self._answered_at)
        after = {gpu.index: (gpu.status, gpu.uuid, gpu.recovery_action) for gpu in self._picture.gpus}
        if self._asked or before != after:
            self._asked = False
            self._on_news()

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(SUPERVISE_SECONDS)
            now = time.monotonic()
            held, self._held = self._held, self._released()
            if held or self._held:
                self._answered_at = now  # nothing was owed until now
            if self._held:
                self._send_away()
            elif self._process is None:
                if now >= self._start_at:
                    self._spawn()
            elif self._process.poll() is not None:
                self._reap()
            elif self._killed_at is None and self._owes_for(now) > self._bounds.kill_after:
                log.error("nvml_killed", extra=fields(pid=self._process.pid, silent_seconds=self.silent_seconds()))
                self._problem = f"the process that asks it was killed after {self._bounds.kill_after:g} s"
                self._kill(self._process)

    def _released(self) -> bool:
        try:
            return time.time() - self._release.stat().st_mtime < RELEASE_SECONDS_MAX
        except OSError:
            return False

    def _send_away(self) -> None:
        """The next one starts as soon as it may."""
        if not self._away:
            log.info("nvml_released", extra=fields(file=self._release))
        self._away, self._start_at = True, 0.0
        process = self._process
        if process is None:
            return
        if process.poll() is not None:
            self._close_pipes(process)
            self._process, self._killed_at = None, None
        elif self._killed_at is None:
            self._kill(process)

    def _owes_for(self, now: float) -> float:
        """How long this process has kept us waiting."""
        return now - max(self._answered_at, self._spawned_at) - self._interval_seconds

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._close_pipes(process)
        self._send_kill(process)
        self._killed_at = time.monotonic()

    def _reap(self) -> None:
        """It has ended, or is about to: its output has."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            if self._killed_at is None:
                self._kill(process)
            return  # the next look will find it gone
        words = self._problem or f"the process that asks NVML ended with {process.returncode}"
        self._close_pipes(process)
        self._process, self._killed_at = None, None
        self._failed(words)

    def _failed(self, words: str) -> None:
        """The next one is started after a while, and later each time."""
        log.warning("nvml_process_ended", extra=fields(reason=words, failures=self._failures))
        self._problem = words
        wait = min(self._bounds.restart_first * 2**self._failures, self._bounds.restart_most)
        self._failures += 1
        self._start_at = time.monotonic() + wait

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None and not process.stdout.closed:
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
