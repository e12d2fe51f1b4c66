"""A gang that `understudy run` runs, as a job on a testbed or beside this process, and what can be asked of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.testbed.cluster import PATIENCE
from tests.testbed.processes import all_processes, environment_of
from tests.testbed.site import RESEARCHER, Site

PROGRAM = Path(__file__).with_name("program.py")
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
ENDED = {*OVER, "COMPLETING"}
"""A job with a dead node is COMPLETING until that node is back, or down for Slurm."""


class Gang:
    """What its ranks and its launcher write into a home directory."""

    def __init__(self, home: Path, python: Path) -> None:
        self.home = home
        self.python = python
        self.program = self.home / "program.py"
        shutil.copy(PROGRAM, self.program)

    def words(self, options: Sequence[str], command: Sequence[str] | None) -> list[str]:
        """The launcher's command line."""
        run = command if command is not None else [str(self.python), str(self.program)]
        return [*options, "--events", "events", "--verdicts", "verdicts", "--", *run]

    def simple(self, *words: str) -> list[str]:
        return [str(self.python), str(self.program), *words]

    # -- what it shows -----------------------------------------------------------------------------------------

    def lines(self, name: str) -> list[Any]:
        path = self.home / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def ranks(self, launch: int) -> list[dict[str, Any]]:
        """What the ranks of a launch wrote when they started, by rank."""
        found = [one for one in self.lines("ranks") if one["UNDERSTUDY_LAUNCH"] == str(launch)]
        return sorted(found, key=lambda one: int(one["RANK"]))

    def nodes(self, launch: int) -> list[str]:
        return list(dict.fromkeys(one["SLURMD_NODENAME"] for one in self.ranks(launch)))

    def events(self, what: str) -> list[dict[str, Any]]:
        return [one for one in self.lines("events") if one["event"] == what]

    @property
    def output(self) -> str:
        path = self.home / "output"
        return path.read_text() if path.exists() else "(no output yet)"

    # -- waiting -----------------------------------------------------------------------------------------------

    def wait_for(self, predicate: Any, seconds: float, what: str, interval_seconds: float = 0.05) -> None:
        """Looks at files every 50 ms; one that runs a command for each look does so more rarely."""
        deadline = time.monotonic() + seconds * PATIENCE
        while not predicate():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds * PATIENCE:g} s: {what}\n{self.output}")
            time.sleep(interval_seconds)

    def wait_for_launch(self, launch: int, ranks: int, seconds: float = 60) -> None:
        self.wait_for(lambda: len(self.ranks(launch)) == ranks, seconds, f"{ranks} ranks of launch {launch}")

    def wait_for_standbys(self, count: int, what: str = "seat", generation: int = 1) -> None:
        """Until so many seats of that generation are there (`seat`), or have their imports done (`warm`)."""

        def there() -> bool:
            return sum(bool(one["generation"] == generation) for one in self.events(what)) >= count

        self.wait_for(there, 60, f"{what}: {count} of generation {generation}")

    def forget(self) -> None:
        """What an earlier job of this test left behind that a later one would be taken for."""
        for name in ("ranks", "events", "verdicts", "finish", "output", "done"):
            (self.home / name).unlink(missing_ok=True)

    def finish(self) -> None:
        (self.home / "finish").touch()

    def condemn(self, node: str, reason: str = "Xid 79") -> float:
        with (self.home / "verdicts").open("a") as file:
            file.write(f"{node} {reason}\n")
        return time.time()


@contextmanager
def launcher_site(nodes: int, slurm_conf_lines: Sequence[str] = ()) -> Iterator[Site]:
    """A cluster without spares, whose users run the launcher of this checkout, whichever one is installed."""
    directory = Path(tempfile.mkdtemp(prefix="ud-"))
    directory.chmod(0o755)
    try:
        with Site(directory, nodes=nodes, spares=0, slurm_conf_lines=slurm_conf_lines) as started:
            started.copy_launcher()
            yield started
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class GangJob(Gang):
    """One job of the researcher's, in a home directory that was emptied first."""

    def __init__(self, site: Site, python: Path) -> None:
        self.site = site
        home = site.cluster.user_directory(RESEARCHER)
        for path in home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        super().__init__(home, python)
        self.job = 0

    def submit(
        self,
        options: Sequence[str],
        command: Sequence[str] | None = None,
        nodes: int = 6,
        sbatch: Sequence[str] = ("--gres=gpu:8",),
    ) -> None:
        script = self.home / "job.sh"
        run = f'exec {self.python} -P -m understudy_launcher "$@"'
        script.write_text(f"#!/bin/bash\n#SBATCH --no-kill\n#SBATCH --output=output\n{run}\n")
        wanted = [f"--nodes={nodes}", *sbatch]
        self.job = self.site.submit(script, *self.words(options, command), options=wanted)

    def exit_code(self, seconds: float = 90) -> int:
        """The job's, once it has ended."""
        self._wait_for_state(ENDED, seconds)
        status, _, number = self._fields()["ExitCode"].partition(":")
        return int(status) or (128 + int(number) if int(number) else 0)

    def _fields(self) -> dict[str, str]:
        done = self.site.cluster.run("scontrol", "show", "job", "-o", str(self.job))
        return dict(part.split("=", 1) for part in done.stdout.split() if "=" in part)

    def cancel(self) -> None:
        self.site.cluster.run("scancel", str(self.job))
        self._wait_for_state(OVER, 60)

    def _wait_for_state(self, states: Set[str], seconds: float) -> None:
        self.wait_for(lambda: self._fields().get("JobState") in states, seconds, f"job {self.job} has ended", 0.3)

    def processes(self) -> list[int]:
        """Every process with this job's id in its environment."""
        return [
            pid
            for pid in all_processes()
            if environment_of(pid).get("SLURM_JOB_ID") == str(self.job) and self._mine(pid)
        ]

    def _mine(self, pid: int) -> bool:
        return environment_of(pid).get("TESTBED") == str(self.site.directory) and pid != os.getpid()
