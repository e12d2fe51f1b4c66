"""A gang beside this process: the real launcher, seats and ranks, with Slurm's commands played by `fake_slurm`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests import PYTHON_PATH
from tests.launch import fake_slurm
from tests.launch.gang import Gang
from tests.testbed.processes import command_of, is_running, read_process, signal_process


class LocalGang(Gang):
    def __init__(self, home: Path) -> None:
        super().__init__(home, Path(sys.executable))
        self._launcher: subprocess.Popen[bytes] | None = None
        self.before: Sequence[str] = ()
        """A command that runs the launcher."""
        self.run: Sequence[str] = ("-P", "-m", "understudy_launcher")
        """The launcher, as arguments of Python."""
        commands = home / "bin"
        commands.mkdir()
        for name in ("srun", "scancel", "scontrol"):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -P {fake_slurm.__file__} {name} "$@"\n')
            command.chmod(0o755)

    def start(
        self,
        options: Sequence[str],
        command: Sequence[str] | None = None,
        nodes: int = 5,
        files: str = "1024:",
        **variables: str,
    ) -> None:
        """One rank a node, unless the options say otherwise. `variables`: of the job. `files`: the soft limit of open
        files that it was submitted with, and the hard one.
        """
        names = [f"n{number}" for number in range(1, nodes + 1)]
        environment = {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONPATH": PYTHON_PATH,
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": ",".join(names),
            "UNDERSTUDY_SOCKET": str(self.home / "agent.sock"),
            **variables,
        }
        words = self.words(["--procs-per-node", "1", "--slurm-poll-seconds", "0", *options], command)
        run = (sys.executable, *self.run)
        with (self.home / "output").open("wb") as output:
            self._launcher = subprocess.Popen(
                [*self.before, "prlimit", f"--nofile={files}", "--", *run, *words],
                env=environment,
                cwd=self.home,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        """The guardian, which Slurm would start and signal."""
        assert self._launcher is not None
        return self._launcher

    def launcher_pid(self) -> int:
        """Process id of the launcher itself, below its guardian. It knows that its ranks run: before that, one in its
        place would start them once more.
        """
        self.wait_for(lambda: self.events("started"), 60, "the launcher has heard that the ranks run")
        return self._launchers()[0]

    def kill_launcher(self) -> None:
        """And wait until its guardian has started another one."""
        before = self.launcher_pid()
        os.kill(before, signal.SIGKILL)
        self.wait_for(lambda: set(self._launchers()) - {before}, 20, "the launcher is started again")

    def _launchers(self) -> list[int]:
        pid = self.launcher.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [int(one) for one in children if b"understudy_launcher\0" in command_of(int(one))]

    def stick(self, *nodes: str) -> None:
        """Their ranks do not die of SIGKILL."""
        for node in nodes:
            (self.home / f"stuck.{node}").touch()

    def unstick(self, *nodes: str) -> None:
        for node in nodes:
            (self.home / f"stuck.{node}").unlink()

    def mute(self, node: str) -> None:
        """Seats that start there are not heard of."""
        (self.home / f"mute.{node}").touch()

    def slow(self, node: str) -> None:
        """Programs need five seconds to be started there."""
        (self.home / f"slow.{node}").touch()

    def seat(self, node: str, step: int = 0) -> int:
        """Its process id."""
        return int((self.home / f"step.{step}" / node).read_text())

    def rows(self) -> list[str]:
        return [one["row"] for one in self.events("decision")]

    def exit_code(self, seconds: float = 60) -> int:
        self.wait_for(lambda: self.launcher.poll() is not None, seconds, "the launcher has ended")
        return self.launcher.returncode

    def close(self) -> None:
        self.finish()
        if self._launcher is not None:
            launchers = self._launchers()
            self._launcher.kill()
            self._launcher.wait()
            for pid in launchers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)  # without a guardian it ends
        deadline = time.monotonic() + 10
        for path in self.home.glob("step.*/*"):
            seat = read_process(int(path.read_text()))
            while seat is not None and is_running(seat) and time.monotonic() < deadline:
                signal_process(seat, signal.SIGCONT)
                time.sleep(0.01)
