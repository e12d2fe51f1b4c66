"""Slurm's commands, as the launcher uses them: srun, scancel, sinfo, and scontrol to read.

None needs a shell, none is waited for on the way to a new launch, and none acts on anything but steps of this job.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from understudy_launcher.event_log import Events
from understudy_launcher.node_list import fold
from understudy_launcher.protocol import SECRET_VARIABLE

QUERY_SECONDS = 10.0
_DOWN = {"DOWN", "FAIL", "FAILING", "ERROR", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}
_CPUS = re.compile(r"(\d+)(?:\(x\d+\))?")
# What an option on srun's command line does not override: the allocation's own shape, meant for other steps.
_NOT_FOR_SRUN = (
    *("SLURM_HOSTFILE", "SLURM_DISTRIBUTION", "SLURM_EXACT", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_GPU_BIND", "SLURM_THREADS_PER_CORE"),
)
_GPUS_NOT_BY_NODE = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK")


class NoAllocation(Exception):
    """A gang cannot be started here; the message has the cause and what to do."""


@dataclass(frozen=True, slots=True)
class Allocation:
    job_id: str
    nodes: tuple[str, ...]
    """Slurm's order: the first is the batch host."""
    cpus_per_node: int
    gpus_per_node: int = 0
    """Number to ask for by name. 0 where a step gets all of the job's by itself, which is the rule."""


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Raises NoAllocation."""
    job_id, listed = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not job_id.isdecimal() or not listed:
        raise NoAllocation(
            "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set: run it in a batch script "
            "(sbatch --no-kill --nodes=<gang and spares>)"
        )
    components = environment.get("SLURM_HET_SIZE", "")
    if components.isdecimal() and int(components) > 1:
        raise NoAllocation(
            f"job {job_id} is heterogeneous, with {components} components: a gang cannot be restarted in one of them; "
            "submit a job of its own for the gang"
        )
    try:
        done = _scontrol("show", "hostnames", listed)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAllocation(f"scontrol show hostnames {listed}: {error}") from error
    nodes = tuple(done.stdout.split())
    if done.returncode != 0 or not nodes:
        raise NoAllocation(f"scontrol show hostnames {listed} failed: {done.stderr.strip()}")
    counts = [int(found) for found in _CPUS.findall(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))]
    return Allocation(job_id, nodes, min(counts, default=1), _gpus_to_ask_for(environment))


def _scontrol(*words: str) -> subprocess.CompletedProcess[str]:
    """Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)


def _gpus_to_ask_for(environment: Mapping[str, str]) -> int:
    """A job that asked for GPUs by task or in all has steps that get none, or too many, unless they name the number."""
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    odd = any(name in environment for name in _GPUS_NOT_BY_NODE)
    return int(count) if odd and count.isdecimal() else 0


def asked_for_no_kill(allocation: Allocation, environment: Mapping[str, str]) -> bool | None:
    """None: not known. Slurm does not show it; it is known only from an #SBATCH line of the batch script."""
    if "SLURM_NO_KILL" in environment:
        return True
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = _scontrol("write", "batch_script", allocation.job_id, "-")
        if re.search(r"^#SBATCH\s+(?:.*\s)?(?:--no-kill(?!=off)|-k)\b", done.stdout, re.MULTILINE):
            return True
    return None


def srun_arguments(
    allocation: Allocation, nodes: Sequence[str], seat: Sequence[str], options: Sequence[str] = ()
) -> list[str]:
    """One task on each node, beside other steps, that outlives the loss of any of its nodes. `options`: the user's."""
    return [
        *("srun", *options, f"--jobid={allocation.job_id}", "--overlap", "--no-kill"),
        # A seat that is lost concerns the launcher, which knows what to do; Slurm would end the standbys, too.
        *("--kill-on-bad-exit=0", "--wait=0"),
        *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
        *(f"--nodelist={fold(nodes)}", f"--cpus-per-task={allocation.cpus_per_node}"),
        *([f"--gres=gpu:{allocation.gpus_per_node}"] if allocation.gpus_per_node else []),
        *("--mpi=none", "--input=none", "--export=ALL", "--quiet"),
        *seat,
    ]


def start_step(arguments: Sequence[str], secret: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_SRUN}
    environment[SECRET_VARIABLE] = secret
    # A session of its own: Ctrl-C must reach the launcher only.
    return subprocess.Popen(list(arguments), env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


def kill_step(job_id: str, step: str) -> subprocess.Popen[bytes] | None:
    """Slurm sends SIGKILL to all processes of the step. Does not wait for that."""
    if not job_id.isdecimal() or not step.isdecimal():
        return None
    try:
        return subprocess.Popen(
            ["scancel", "--signal=KILL", f"{job_id}.{step}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # scancel writes an error if the step has ended meanwhile
        )
    except OSError as error:
        sys.stderr.write(f"understudy: cannot run scancel: {error}\n")
        return None


class NodeStates:
    """Nodes that Slurm shows as down. Asks sinfo at intervals, and never waits for it."""

    def __init__(self, nodes: Sequence[str], interval_seconds: float, events: Events) -> None:
        self._events = events
        self._arguments = ["sinfo", "--local", "--noheader", "--Node", f"--nodes={fold(nodes)}", "--format=%N %T"]
        self._interval_seconds = interval_seconds
        self._program: subprocess.Popen[bytes] | None = None
        self._answer: IO[bytes] | None = None
        """A file: sinfo has a line for each node in each partition, and a pipe that is not read would fill up."""
        self._asked = time.monotonic()
        self._down: Mapping[str, str] = {}
        self._complained = False

    def poll(self) -> Mapping[str, str]:
        """Nodes that are down, by the last answer there is."""
        now = time.monotonic()
        if self._program is None:
            if self._interval_seconds > 0 and now - self._asked >= self._interval_seconds:
                self._ask(now)
        elif self._program.poll() is not None:
            if self._program.returncode != 0:
                self._complain(f"it ended with {self._program.returncode}")
            elif self._answer is not None:
                self._answer.seek(0)
                self._down = down_nodes(self._answer.read().decode(errors="replace"))
            self._forget()
        elif now - self._asked > QUERY_SECONDS:
            self._program.kill()
        return self._down

    def close(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        self._forget()

    def _ask(self, now: float) -> None:
        self._asked = now
        try:
            self._answer = os.fdopen(os.memfd_create("sinfo"), "w+b")  # on no disk, which could hang
            self._program = subprocess.Popen(
                self._arguments, stdout=self._answer, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self._complain(str(error))
            self._forget()

    def _complain(self, why: str) -> None:
        """Reported once. sinfo is asked again, and seats that disconnect show dead nodes as well."""
        if not self._complained:
            self._complained = True
            self._events.report("sinfo_failed", f"cannot learn from sinfo which nodes are down: {why}")

    def _forget(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._program = self._answer = None


def down_nodes(output: str) -> Mapping[str, str]:
    found = {}
    for line in output.splitlines():
        node, _, state = line.partition(" ")
        bare = state.strip().rstrip("*~#!%$@^-+").upper()
        if bare in _DOWN:
            found[node] = f"Slurm shows it as {bare}"
    return found
