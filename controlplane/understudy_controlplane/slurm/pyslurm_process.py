"""Starts and calls the process in which pyslurm runs, with a time limit, and survives its death.

`pyslurm_gateway` knows what the calls mean, `pyslurm_worker` is the process itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from understudy_controlplane.slurm.cli import UNAVAILABLE
from understudy_controlplane.slurm.fenced import ends_at, seconds_left
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable

log = structlog.get_logger()

WORKER = Path(__file__).with_name("pyslurm_worker.py")


END_SECONDS = 2.0
"""Time for a killed process, or one that closed its output, to end; after that it is left alone."""


class WorkerDied(SlurmUnavailable):
    """The process died during a call, whose outcome is unknown."""


class PyslurmWorker:
    """The process in which pyslurm runs, started when first needed and again after its death."""

    def __init__(self, python: str, environment: Mapping[str, str] | None, timeout_seconds: float) -> None:
        # The worker is passed as text: the Python that has pyslurm may see other files than this process.
        self._command = [python or sys.executable, "-c", WORKER.read_text(encoding="utf-8")]
        self._environment = dict(os.environ if environment is None else environment)
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, call: str, arguments: Sequence[object], kind: Any) -> Any:
        """The answer as `kind`. Raises WorkerDied, SlurmUnavailable, or SlurmError."""
        request = json.dumps({"call": call, "arguments": list(arguments), "ends_at": ends_at()}).encode() + b"\n"
        begun, seconds = time.monotonic(), seconds_left(self._timeout_seconds)
        if not self._lock.acquire(timeout=seconds):
            raise SlurmUnavailable(f"pyslurm's {call} was not begun within {seconds:.3g} s: another call has not ended")
        try:
            line = self._exchange(call, request, begun, seconds)
        finally:
            self._lock.release()
        try:
            answer = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            if "result" in answer:
                return msgspec.json.decode(answer["result"], type=kind)
            reason = msgspec.json.decode(answer.get("refused") or answer["failed"], type=str)
        except msgspec.MsgspecError as error:
            raise SlurmError(f"pyslurm's {call} returned an unreadable answer: {error}") from error
        words = f"pyslurm's {call}({', '.join(repr(one) for one in arguments)}) failed: {reason}"
        # An error of pyslurm itself may quote what a user wrote.
        away = "refused" in answer and UNAVAILABLE.search(reason)
        raise SlurmUnavailable(words) if away else SlurmError(words)

    def stop(self) -> None:
        process, self._process = self._process, None
        self._received = b""
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
            process.wait(END_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # closing flushes what it never read
                    pipe.close()

    def _exchange(self, call: str, request: bytes, begun: float, seconds: float) -> bytes:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(call) from None
        return self._read_line(process, call, begun, seconds)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C goes to its parent only; it ends with it
            )
        except OSError as error:
            raise SlurmError(f"{self._command[0]} cannot be run: {error}; set slurm.pyslurm_python") from error
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], call: str, begun: float, seconds: float) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, begun + seconds - time.monotonic())):
                    self.stop()
                    raise SlurmUnavailable(f"pyslurm's {call} did not end within {seconds:.1f} s")
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise self._died(call)
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _died(self, call: str) -> WorkerDied:
        assert self._process is not None
        try:
            code = self._process.wait(END_SECONDS)
            if code == -signal.SIGALRM:
                self.stop()
                raise SlurmUnavailable(f"pyslurm's {call} did not end within its time, and was ended")
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        except subprocess.TimeoutExpired:  # it closed its output, and lives
            how = "by closing its output"
        self.stop()
        log.error("pyslurm_died", call=call, reason=how)
        return WorkerDied(f"the process of pyslurm ended {how} during {call}")
