"""The testbed's handle on its supervisor: start programs below it, see them, end them all.

Belongs here: the caller's side of `tests.testbed.supervise`, where it says why there is such a process. Must not:
anything about Slurm.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests import PYTHON_PATH
from tests.testbed.processes import MARK, Process, all_processes, descendants, kill_all


class SupervisorError(Exception):
    """The supervisor could not start a program, or is gone."""


class Supervisor:
    """A running supervisor process. Stop it, or end this process: both end everything below it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": PYTHON_PATH}
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.testbed.supervise"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**environment, MARK: str(directory)},
            # Ctrl-C in a terminal must not reach the daemons before the testbed's own clean-up does.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._program.pid

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a program below the supervisor, its output appended to `log`. It dies with the supervisor."""
        request = {
            "arguments": list(arguments),
            "environment": {**environment, MARK: str(self._directory)},
            "log": str(log),
            "user": user,
            "cwd": str(cwd or "/"),
        }
        return self._start(arguments[0], request)

    def fork(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, machine: int
    ) -> Process:
        """Start the program `module`, on the node whose namespaces the process `machine` holds: `supervise._fork`."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": {**environment, MARK: str(self._directory)},
            "log": str(log),
            "machine": machine,
        }
        return self._start(module, request)

    def _start(self, name: str, request: Mapping[str, object]) -> Process:
        with self._lock:
            answer = self._ask(json.dumps(request))
        if "error" in answer:
            raise SupervisorError(f"cannot start {name}: {answer['error']}")
        return Process(**answer["process"])

    def descendants(self) -> list[Process]:
        """Everything that runs below the supervisor."""
        processes = all_processes()
        below = descendants([self.pid], processes) - {self.pid}
        return [processes[pid] for pid in sorted(below)]

    def stop(self) -> None:
        """End the tree and the supervisor, and see that nothing is left of them."""
        kill_all(self.descendants)
        with contextlib.suppress(BrokenPipeError):
            self._pipes()[0].close()
        self._program.wait(timeout=10)
        self._pipes()[1].close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        return self._program.stdin, self._program.stdout

    def _ask(self, line: str) -> dict[str, Any]:
        requests, answers = self._pipes()
        try:
            requests.write(line + "\n")
            requests.flush()
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise SupervisorError(f"the supervisor (process {self.pid}) has ended; stop the testbed and start it again")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded
