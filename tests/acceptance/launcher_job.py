"""A gang under `understudy run` in a test site, and its result."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance import gang
from tests.acceptance.ranks import weight_after
from tests.testbed.installation import NATIVE
from tests.testbed.processes import MARK, all_processes, environment_of
from tests.testbed.site import RESEARCHER, Site

OTHER_PYTHON = Path("/usr/bin/python3")
"""Python of another version's Debian, where nothing is installed: neither launcher nor hook need more."""

RANKS = Path(__file__).with_name("ranks.py")
STEPS_MAX = 100_000
"""The gang trains until `assert_trained`, however long a slow machine takes for what comes before."""
STEPS_AHEAD = 100
"""Steps that take at least 3 s, in which every rank learns which step is the last."""


class LauncherJob:
    """A gang of so many nodes, in an allocation of some more."""

    def __init__(self, site: Site, nodes: int, spares: int, *options: str, arguments: str = "") -> None:
        """`options` are sbatch's, `arguments` further ones of the training program."""
        self.site, self.size = site, nodes
        self.home = site.cluster.user_directory(RESEARCHER)
        program = self.home / "ranks.py"
        shutil.copy(RANKS, program)
        python = site.job_python() if site.cluster.slurm is NATIVE else OTHER_PYTHON
        site.copy_launcher()
        script = self.home / "job.sh"
        words = f"--nodes {nodes} --procs-per-node 1 --rearm-seconds 0.5 --events events"
        command = f"{python} {program} {self.home} {STEPS_MAX} {arguments}"
        script.write_text(
            "#!/bin/bash\n#SBATCH --no-kill\n#SBATCH --open-mode=append\n#SBATCH --output=output\n"
            f"exec {python} -P -m understudy_launcher {words} -- {command}\n"
        )
        wanted = [f"--nodes={nodes + spares}", "--gres=gpu:8", "--requeue", "--comment=understudy", *options]
        self.job = site.submit(script, options=wanted)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.home / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def starts(self, attempt: int, launch: int) -> list[dict[str, Any]]:
        """What the ranks of a launch wrote when they began, by rank."""
        found = [one for rank in range(self.size) for one in self.lines(f"attempts-{rank}")]
        return [one for one in found if (one["attempt"], one["launch"]) == (str(attempt), str(launch))]

    def wait_for_launch(self, attempt: int, launch: int, seconds: float = 60) -> list[str]:
        """Its nodes, by rank."""

        def there() -> bool:
            # A fault before the control plane knows of the launcher is the pool's.
            heard = any(one["event"] == "orders_received" for one in self.lines("events"))
            return heard and len(self.starts(attempt, launch)) == self.size

        try:
            self.site.wait_for(there, seconds, f"launch {attempt}.{launch} of job {self.job}")
        except Exception as error:
            log = self.site.cluster.layout.log_directory / "controlplane.log"
            error.add_note((self.home / "output").read_text() + "\n" + log.read_text()[-6000:])
            raise
        return [one["node"] for one in self.starts(attempt, launch)]

    def wait_for_standbys(self, generation: int, count: int) -> None:
        def there() -> bool:
            seats = [one for one in self.lines("events") if one["event"] == "seat" and one["generation"] == generation]
            return len(seats) >= count

        self.site.wait_for(there, 60, f"{count} standbys of generation {generation}")

    def events(self, what: str) -> list[dict[str, Any]]:
        return [one for one in self.lines("events") if one["event"] == what]

    def stall(self, rank: int, *launches: int) -> None:
        """The rank goes no further in these."""
        partial = self.home / ".stall"
        partial.write_text(" ".join(map(str, launches)))
        partial.rename(self.home / f"stall-{rank}")

    def kill_rank(self, rank: int, launch: int) -> None:
        (pid,) = (
            pid
            for pid in all_processes()
            if self.owns(found := environment_of(pid))
            and (found.get("RANK"), found.get("UNDERSTUDY_LAUNCH")) == (str(rank), str(launch))
        )
        os.kill(pid, signal.SIGKILL)

    def owns(self, environment: Mapping[str, str]) -> bool:
        """True if a process with this environment is of this job: clusters of other tests have such a number too."""
        cluster = str(self.site.cluster.directory)
        return (environment.get(MARK), environment.get("SLURM_JOB_ID")) == (cluster, str(self.job))

    def time_limit_minutes(self) -> int:
        hours, minutes, _ = gang.job_fields(self.site, self.job)["TimeLimit"].split(":")
        return int(hours) * 60 + int(minutes)

    def wait_for_checkpoint(self, attempt: int, launch: int) -> None:
        """One that is further than where this launch began."""
        since = max(one["from"] for one in self.starts(attempt, launch))

        def there() -> bool:
            done = [one["step"] for one in self.site.items("/v1/checkpoints") if one["complete"]]
            return bool(done) and max(done) > since

        self.site.wait_for(there, 60, f"a checkpoint beyond step {since}")

    def assert_trained(self) -> None:
        """Its training is to end soon, and ends with the right weights.

        A job with a dead node is COMPLETING until that node is back, or down for Slurm.
        """
        steps = STEPS_AHEAD + max(int(path.name.removeprefix("checkpoint-")) for path in self.home.glob("checkpoint-*"))
        (self.home / ".steps").write_text(str(steps))
        (self.home / ".steps").rename(self.home / "steps")

        def over() -> bool:
            return gang.state(self.site, self.job) in ("COMPLETED", "COMPLETING")

        self.site.wait_for(over, 120, "the job has completed")
        assert gang.job_fields(self.site, self.job)["ExitCode"] == "0:0"
        weights = {(self.home / f"weight-{rank}").read_text() for rank in range(self.size)}
        assert weights == {str(weight_after(steps))}


def swaps(site: Site) -> list[dict[str, Any]]:
    """Swaps within allocations, oldest first."""
    return [one for one in reversed(site.items("/v1/recoveries")) if one["kind"] == "allocation"]


def wait_succeeded(site: Site, count: int) -> None:
    def there() -> bool:
        return [one["status"] for one in swaps(site)].count("succeeded") == count

    site.wait_for(there, 60, f"{count} swaps within the allocation have succeeded: {swaps(site)}")
