"""What the demo does, in order. Everything is real but the GPUs."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import REPOSITORY
from tests.demo.timeline import RecoveryShown
from tests.testbed.site import RESEARCHER, Site
from understudy_controlplane.fleet.counted import counted

STEPS = 400
"""So many that a quick machine has not done them all before the slow rank is found."""
STEPS_BEFORE_A_FAULT = 45
"""Enough for two checkpoints, so that there is something to go on from and something to lose."""

OTHER_USER = "games"
OTHERS_PENDING_NODES = (1, 2, 4)
GANG_START_SECONDS = 90.0
RECOVERY_SECONDS = 90.0
LIVE_STEPS = 150
LIVE_STEP_SECONDS = 0.08


class DemoFailed(Exception):
    """Something that the demo promises did not happen."""


@dataclass
class Result:
    """What came of it."""

    recoveries: list[RecoveryShown] = field(default_factory=list)
    weights_identical: bool = False
    ettr: float = 0.0
    gang_seconds: float = 0.0
    step_seconds: float = 0.0
    first_start_seconds: float = 0.0  # from Slurm's start of the gang to its first step


class OthersWatch:
    """Looks at the queue all the while: do the other jobs ever get a seat of the gang's?"""

    def __init__(self, site: Site, gang: int, pending: list[int]) -> None:
        self._site = site
        self._gang = str(gang)
        self._pending = {str(job) for job in pending}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.looks = 0
        self.intruders: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            done = self._site.cluster.run("squeue", "--noheader", "--format=%i|%T|%N")
            jobs = [line.split("|") for line in done.stdout.splitlines()]
            # A gang that is completing may be over, and its seats free for all; if it is not, the next look shows it.
            if not any(job == self._gang and state in ("PENDING", "RUNNING") for job, state, _ in jobs):
                continue
            self.looks += 1
            for job, state, nodes in jobs:
                if job in self._pending and state != "PENDING":
                    self.intruders.add(f"job {job} is {state} on {nodes}")


class Story:
    def __init__(self, site: Site, say: Callable[[str], None], at_end: Callable[[int], None]) -> None:
        """`at_end` is called with the gang's job while that still runs, after its last fault."""
        self._site = site
        self._say = say
        self._at_end = at_end
        self._python = site.job_python()
        self._script = site.code / "job.sh"
        self.result = Result()

    def run(self) -> Result:
        shutil.copy(REPOSITORY / "tests" / "demo" / "job.sh", self._script)
        shutil.copy(REPOSITORY / "tests" / "demo" / "train.py", self._site.code / "train.py")
        self._live_gang()
        reference = self._reference_run()
        gang, directory = self._submit("gang")
        self._say(f"the gang starts: job {gang} of user {RESEARCHER}, 4 nodes, {STEPS} steps")
        others = self._other_jobs()
        watch = OthersWatch(self._site, gang, others)
        self._wait_running(gang)
        watch.start()
        try:
            self.result.first_start_seconds = self._first_start(gang)
            self._faults(gang)
            self._at_end(gang)
            self._wait_completed(gang)
        finally:
            watch.stop()
        if watch.intruders:
            raise DemoFailed(f"a seat of the gang's was taken: {'; '.join(sorted(watch.intruders))}")
        self._say(f"the other jobs pended all the while ({watch.looks} looks at the queue)")
        self._compare(reference, directory)
        self._read_ettr(gang)
        return self.result

    # -- runs --------------------------------------------------------------------------------------------------

    def _submit(self, name: str, *options: str) -> tuple[int, Path]:
        """`options` are those of the training script."""
        directory = self._site.cluster.user_directory(RESEARCHER) / name
        self._site.cluster.run("mkdir", "-p", str(directory), user=RESEARCHER)
        train = [str(self._python), str(self._site.code / "train.py"), f"--steps={STEPS}", *options, str(directory)]
        return self._site.submit(self._script, *train, options=[f"--output={directory}/log"]), directory

    def _reference_run(self) -> Path:
        job, directory = self._submit("reference", "--kernel-seconds=0")  # how long a step takes changes no weight
        self._say(f"the reference run: job {job}, the same training without any fault, as fast as it can")
        self._wait_running(job)
        self._wait_completed(job)
        return directory

    def _live_gang(self) -> None:
        """A gang under `understudy run`: a spare of its own allocation, and the state of the ranks that are left."""
        for file in ("job_live.sh", "train_live.py"):
            shutil.copy(REPOSITORY / "tests" / "demo" / file, self._site.code / file)
        directories = []
        for name, nodes, seconds in (("live-reference", 3, 0.0), ("live", 4, LIVE_STEP_SECONDS)):
            directory = self._site.cluster.user_directory(RESEARCHER) / name
            self._site.cluster.run("mkdir", "-p", str(directory), user=RESEARCHER)
            train = [str(self._python), str(self._site.code / "train_live.py"), f"--kernel-seconds={seconds}"]
            train += [f"--steps={LIVE_STEPS}", str(directory)]
            options = [f"--nodes={nodes}", f"--output={directory}/log"]
            job = self._site.submit(self._site.code / "job_live.sh", *train, options=options)
            directories.append(directory)
            if name == "live":
                self._say(
                    f"a gang under `understudy run`: job {job}, 3 nodes and a spare of its own, {LIVE_STEPS} steps"
                )
                self._wait_progress(job, attempt=0)
                before = self._nodes_of_ranks(job)
                node = before[1]
                self._say(f"fault 0: Xid 79: a GPU falls off the bus, on {node}")
                at = self._site.nodes[node].fail_gpu(gpu=3)
                self.result.recoveries.append(self._wait_live(job, before, node, at))
            self._wait_completed(job)
        self._compare(*directories)

    def _wait_live(self, job: int, before: list[str], node: str, at: float) -> RecoveryShown:
        def swaps() -> list[dict[str, Any]]:
            found = self._site.items("/v1/recoveries")
            return [one for one in found if one["kind"] == "allocation" and one["status"] != "running"]

        self._site.wait_for(lambda: swaps() or self._state(job) != "RUNNING", RECOVERY_SECONDS, "the gang goes on")
        if not swaps() or swaps()[0]["status"] != "succeeded":
            raise DemoFailed(f"after the Xid on {node}: {swaps()}; the gang's log:\n{self._log_tail(job)}")
        swap = swaps()[0]
        shift = (swap["fault_at"] - at) * 1000
        phases = {phase: round(at + shift) for phase, at in swap["phases_ms"].items()}
        [spare] = set(self._nodes_of_ranks(job)) - set(before)
        shown = RecoveryShown("xid", node, spare, "allocation", phases, swap["steps_lost"], "a replica")
        self._say(
            f"  back on {spare} after {phases['first_step'] / 1000:.1f} s, {counted(shown.steps_lost, 'step')} lost"
        )
        return shown

    def _other_jobs(self) -> list[int]:
        """One job runs beside the gang, others pend and would love its seats."""
        cluster = self._site.cluster
        sleep = "#!/bin/bash\nsleep 3600\n"
        running = cluster.sbatch("--nodes=1", "--gres=gpu:8", "--job-name=other", script=sleep, user=OTHER_USER)
        self._wait_running(running)
        pending = [
            cluster.sbatch(f"--nodes={nodes}", "--gres=gpu:8", "--job-name=hungry", script=sleep, user=OTHER_USER)
            for nodes in OTHERS_PENDING_NODES
        ]
        self._say(f"another job runs beside it ({running}), {len(pending)} more would love its seats")
        return pending

    def _wait_running(self, job: int) -> None:
        self._site.wait_for(lambda: self._state(job) == "RUNNING", GANG_START_SECONDS, f"job {job} runs")

    def _wait_completed(self, job: int) -> None:
        def over() -> bool:
            self._show_progress(job)
            return self._state(job) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

        self._site.wait_for(over, 180, f"job {job} is over")
        state = self._state(job)
        if state != "COMPLETED":
            raise DemoFailed(f"job {job} ended as {state}; its log:\n{self._log_tail(job)}")

    def _state(self, job: int) -> str:
        done = self._site.cluster.run("scontrol", "show", "job", "-o", str(job))
        fields = dict(part.split("=", 1) for part in done.stdout.split() if "=" in part)
        return fields.get("JobState", "")

    def _log_tail(self, job: int) -> str:
        home = self._site.cluster.user_directory(RESEARCHER)
        logs = sorted(home.glob("*/log"), key=lambda log: log.stat().st_mtime)
        return "\n".join(logs[-1].read_text(errors="replace").splitlines()[-30:]) if logs else f"no log of job {job}"

    # -- faults ------------------------------------------------------------------------------------------------

    def _faults(self, gang: int) -> None:
        site = self._site
        silence = "its power is gone, no connection is reset"
        death = silence if site.cluster.has_machines else "slurmd, agent and ranks killed at once"
        faults: tuple[tuple[str, str, int, Callable[[str], float]], ...] = (
            ("xid", "Xid 79: a GPU falls off the bus", 1, lambda node: site.nodes[node].fail_gpu(gpu=3)),
            ("dead_node", death, 2, site.lose_node),
            ("straggler", "hardware slowdown: the clock falls by a third", 0, lambda n: site.nodes[n].throttle_gpu()),
        )
        for number, (fault, words, seat, inject) in enumerate(faults):
            self._wait_progress(gang, attempt=number)
            node = self._seats(gang)[seat]
            self._say(f"fault {number + 1}: {words}, on {node}")
            at = inject(node)
            self.result.recoveries.append(self._wait_recovered(gang, fault, node, at, number))

    def _wait_progress(self, gang: int, attempt: int) -> None:
        """Until the attempt has gone far enough to have something to lose."""

        def far_enough() -> bool:
            made = self._show_progress(gang)
            return made is not None and made[0] == attempt and made[1] >= STEPS_BEFORE_A_FAULT

        self._site.wait_for(far_enough, GANG_START_SECONDS, f"attempt {attempt} makes {STEPS_BEFORE_A_FAULT} steps")

    def _first_start(self, gang: int) -> float:
        def made_a_step() -> bool:
            made = self._show_progress(gang)
            return made is not None and made[1] > 0

        self._site.wait_for(made_a_step, GANG_START_SECONDS, "the gang makes its first step")
        job = next(one for one in self._site.items("/v1/jobs?limit=20") if one["job_id"] == gang)
        return time.time() - float(job["attempts"][0]["running_at"])

    def _show_progress(self, gang: int) -> tuple[int, int] | None:
        """(attempt, steps it made) as its ranks report them now. The attempt's record is written every ten seconds."""
        for job in self._site.items("/v1/jobs?limit=20"):
            if job["job_id"] == gang and job["attempts"]:
                attempt = job["attempts"][-1]
                ranks = self._site.get(f"/v1/jobs/{gang}/ranks")
                if ranks["restart_count"] != attempt["restart_count"]:
                    return None
                last_step = max((rank["last_step"] or 0 for rank in ranks["items"]), default=0)
                return attempt["restart_count"], last_step - (attempt["restore_step"] or 0)
        return None

    def _seats(self, gang: int) -> list[str]:
        job = next(one for one in self._site.items("/v1/jobs?limit=20") if one["job_id"] == gang)
        nodes: list[str] = job["attempts"][-1]["nodes"]
        return nodes

    def _nodes_of_ranks(self, gang: int) -> list[str]:
        """Nodes of the ranks alone, without an allocation's spares."""
        return [one["node"] for one in self._site.get(f"/v1/jobs/{gang}/ranks")["items"]]

    def _wait_recovered(self, gang: int, fault: str, node: str, at: float, number: int) -> RecoveryShown:
        def ended() -> dict[str, Any] | None:
            swaps = self._site.recoveries()
            if len(swaps) <= number and self._state(gang) == "COMPLETED":
                raise DemoFailed(f"the gang has done all its {STEPS} steps before the fault on {node} was found")
            return swaps[number] if len(swaps) > number and swaps[number]["status"] != "running" else None

        self._site.wait_for(ended, RECOVERY_SECONDS, f"the gang is back after {node} failed ({fault})")
        swap = self._site.recoveries()[number]
        if swap["status"] != "succeeded" or swap["nodes"] != [node]:
            raise DemoFailed(
                f"after {fault} on {node}: recovery of {swap['nodes']} {swap['status']}: {swap['outcome']}"
            )
        shift = (
            swap["fault_at"] - at
        ) * 1000  # the control plane counts from the fault that it saw, the demo from the one that it injected
        phases = {phase: round(at + shift) for phase, at in swap["phases_ms"].items()}
        drained = self._site.node(node)["slurm"]
        if not drained["reason"].startswith("understudy:"):
            raise DemoFailed(f"{node} was not drained by the control plane: {drained}")
        tier = self._restored_from(number + 1)
        result = RecoveryShown(fault, node, swap["spares"][0], "pool", phases, swap["steps_lost"], tier)
        self._say(
            f"  back on {result.spare} after {phases['first_step'] / 1000:.1f} s, restored from {tier}, "
            f"{counted(result.steps_lost, 'step')} lost"
        )
        return result

    def _restored_from(self, attempt: int) -> str:
        """Checkpoint that rank 0 reported."""
        log = self._site.cluster.user_directory(RESEARCHER) / "gang" / "log"
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith('{"restored"'):
                reported = json.loads(line)
                if reported["attempt"] == attempt:
                    return str(reported["from"])
        raise DemoFailed(f"attempt {attempt} of the gang restored nothing; its log:\n{log.read_text(errors='replace')}")

    # -- proof -------------------------------------------------------------------------------------------------

    def _compare(self, reference: Path, directory: Path) -> None:
        """Bit for bit, tensor by tensor."""
        import torch

        one = torch.load(reference / "final.pt", weights_only=True)
        two = torch.load(directory / "final.pt", weights_only=True)
        same = one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
        self.result.weights_identical = same
        if not same:
            raise DemoFailed(f"the final weights differ: {reference}/final.pt and {directory}/final.pt")

    def _read_ettr(self, gang: int) -> None:
        self._site.wait_for(lambda: self._ettr(gang)["steps_kept"] == STEPS, 30, "the gang's last step is known")
        ettr = self._ettr(gang)
        self.result.ettr = ettr["ratio"]
        self.result.gang_seconds = ettr["wall_seconds"]
        self.result.step_seconds = ettr["step_seconds"]

    def _ettr(self, job: int) -> dict[str, float]:
        record = next(one for one in self._site.items("/v1/jobs?limit=20") if one["job_id"] == job)
        if record["ettr"] is None:
            raise DemoFailed(f"the control plane knows no ETTR of job {job}")
        found: dict[str, float] = record["ettr"]
        return found
