"""Processes that have a GPU open and neither end nor continue, or that their job has left behind: they keep its memory.

- A thread that waits in the kernel for two minutes without a context switch (state D): the kernel's own measure of a
  hung task (`check_hung_task` of kernel/hung_task.c).
- A thread that SIGKILL does not end: the signal is pending, or the thread is ending (PF_EXITING). While a core is
  written the other threads of its process wait for that, ending, and are not stuck.
- A zombie whose other threads live.
- A user's process in the cgroup of a job of Slurm that is older than each slurmstepd of the job here: each step has one
  until the last of its processes has ended, so its own is gone. Where the job of one slurmstepd is not known, no
  process counts as left behind.
- A user's process that computes on a GPU, outside of such cgroups and not below a slurmstepd: of a user who has logged
  in, of Docker, or what a job has left where Slurm has no cgroups (proctrack/linuxproc, proctrack/pgid). Whether it is
  a job's that still runs, only Slurm knows. CUDA opens /dev/nvidia-uvm; display servers and programs that only read
  NVML do not. A server of MPS that root's daemon has started as a job's user ends for the next user's program
  (nvidia-cuda-mps-control(1)).

A process that ends closes its files before it waits for the driver, so what it has open is read early, and again at
ever longer intervals while it has no GPU. Files that can wait for a lock of a process that hangs (its command line,
environment, maps and stack) are not read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from understudy_wire.hardware import STUCK_PROCESSES_MAX, Stuck, StuckProcess
from understudy_wire.pci import normal_bus_id
from understudy_wire.process_stat import ProcessStat, read_stat
from understudy_wire.values import printable

LIMIT_SECONDS = {
    Stuck.KILLED: 30.0,
    Stuck.WAITING: 120.0,
    Stuck.ZOMBIE: 120.0,
    Stuck.LEFT: 120.0,
    Stuck.OUTSIDE: 120.0,
}
"""Freeing the memory of a large process takes seconds; 120 s is the kernel's default for a hung task."""

THREADS_MAX = 20_000
"""Threads that are read each time. Of processes beyond only the first thread is read."""
FILES_MAX = 4096

_SIGKILL = 1 << 8
_EXITING, _KERNEL = 0x4, 0x20_0000  # PF_EXITING and PF_KTHREAD of include/linux/sched.h
_DEVICE = re.compile(r"/dev/nvidia(\d{1,4})")
_COMPUTES = "/dev/nvidia-uvm"
_MINOR = re.compile(r"^Device Minor:\s+(\d+)", re.MULTILINE)
_PENDING = re.compile(r"^S(?:ig|hd)Pnd:\s+([0-9a-f]+)", re.MULTILINE)
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_USER = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)
_FOLDER = re.compile(r"slurm[^/\n]*/(?:uid_\d+/)?(job_\d{1,9}|s[0-9A-Z]{13}|system)(?:/|$)", re.MULTILINE)
"""Cgroup of a job and of the slurmstepds of its steps: src/plugins/cgroup of Slurm 22.05 to 26.05. v1:
slurm/uid_1000/job_7; v2: slurmstepd.scope/job_7, or from 26.05 on the SLUID of the job's attempt, as print_sluid() of
src/common/sluid.c writes it, unless cgroup.conf has CgroupJobIdPaths. `slurmstepd infinity`, which keeps the scope, is
in `system`.
"""
_USERS_FROM = 1000
"""Lower user ids are of root and services (SYS_UID_MAX of login.defs)."""
_OF_SERVICES = frozenset({*range(61184, 65520), 65534})
"""Those that systemd gives to a service while it runs (DynamicUser=), and the overflow user's."""
_MPS = "nvidia-cuda-mps"
"""The kernel's 15 characters of nvidia-cuda-mps-control and nvidia-cuda-mps-server."""


def _says(why: Stuck) -> int:
    """The sign that says most about a process has the highest number."""
    return {Stuck.KILLED: 3, Stuck.LEFT: 2, Stuck.OUTSIDE: 0}.get(why, 1)


def _is_below(process: int, parents: dict[int, int], stepds: set[int]) -> bool:
    """One of its ancestors is a slurmstepd: a step that runs has started it."""
    seen: set[int] = set()
    while process not in seen and process not in stepds:
        seen.add(process)
        process = parents.get(process, process)
    return process in stepds


class Sign(NamedTuple):
    """What a stuck thread shows: the same in each reading."""

    thread: int
    why: Stuck
    switches: int = 0


@dataclass(slots=True)
class Known:
    """A process that was seen before."""

    started: int
    readings: int = 0
    devices: frozenset[int] = frozenset()
    since: dict[Sign, float] = field(default_factory=dict)


class Processes:
    """One thread at a time may call read()."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[int, Known] = {}

    def read(self, now: float) -> list[StuckProcess]:
        """The longest first, those outside of jobs last. `now` is of a monotonic clock."""
        left, there = THREADS_MAX, {}
        rows: list[tuple[str, str, Known, list[Sign]]] = []
        served: dict[str, int] = {}  # cgroup of a job → when the first of its slurmstepds began
        parents: dict[int, int] = {}
        stepds: set[int] = set()
        for name in filter(str.isdigit, self._names(".")):
            first = self._stat(name)
            if first is None or first.flags & _KERNEL:
                continue
            parents[int(name)] = first.parent
            if first.command == "slurmstepd":
                stepds.add(int(name))
                folder = self._folder(name)
                served[folder] = min(served.get(folder, first.started_ticks), first.started_ticks)
            known = self._known.get(int(name))
            there[int(name)] = known = (
                known if known and known.started == first.started_ticks else Known(first.started_ticks)
            )
            known.readings += 1
            threads = self._threads(name, first, left)
            left -= len(threads)
            signs = [sign for number, one in threads.items() if (sign := self._sign(name, number, one, first.threads))]
            is_due = known.readings > 1 and known.readings & (known.readings - 1) == 0  # 2, 4, 8, …
            if not known.devices and (signs or is_due):
                known.devices = self._devices(name, threads)
            rows.append((name, first.command, known, signs))
        self._known, found = there, []
        shares_gpus = any(command == _MPS and not self._is_a_users(name) for name, command, _, _ in rows)
        for name, command, known, signs in rows:
            if known.devices and "" not in served and self._is_left(name, known.started, served):
                signs.append(Sign(int(name), Stuck.LEFT))
            of_mps = shares_gpus and command == _MPS
            if known.devices and not of_mps and self._is_outside(name) and not _is_below(int(name), parents, stepds):
                signs.append(Sign(int(name), Stuck.OUTSIDE))
            known.since = {sign: known.since.get(sign, now) for sign in signs}
            if known.devices and (stuck := self._stuck(name, command, known, now)):
                found.append(stuck)
        return sorted(found, key=lambda one: (one.why is Stuck.OUTSIDE, -one.seconds))[:STUCK_PROCESSES_MAX]

    def _threads(self, process: str, first: ProcessStat, left: int) -> dict[int, ProcessStat]:
        if not 1 < first.threads <= left:
            return {int(process): first}
        folder = f"{process}/task"
        found = {int(name): self._stat(f"{folder}/{name}") for name in self._names(folder)}
        return {number: one for number, one in found.items() if one is not None}

    def _stat(self, path: str) -> ProcessStat | None:
        try:
            return read_stat(self._proc / path / "stat")
        except OSError:
            return None

    def _sign(self, process: str, number: int, thread: ProcessStat, threads: int) -> Sign | None:
        if thread.state == "Z":
            return Sign(number, Stuck.ZOMBIE) if threads > 1 and number == int(process) else None
        if thread.state not in "DR" and not thread.flags & _EXITING:
            return None
        status = self._text(f"{process}/task/{number}/status")
        killed = any(int(bits, 16) & _SIGKILL for bits in _PENDING.findall(status))
        if "CoreDumping:\t1" in status and (thread.flags & _EXITING or not killed):
            return None
        if thread.flags & _EXITING or killed:
            return Sign(number, Stuck.KILLED)
        return Sign(number, Stuck.WAITING, sum(map(int, _SWITCHES.findall(status)))) if thread.state == "D" else None

    def _folder(self, process: str) -> str:
        """What Slurm calls the cgroup of its job; empty: it is in none."""
        found = _FOLDER.search(self._text(f"{process}/cgroup"))
        return found[1] if found else ""

    def _is_left(self, process: str, started: int, served: dict[str, int]) -> bool:
        folder = self._folder(process)
        is_over = folder not in ("", "system") and started < served.get(folder, started + 1)
        return is_over and self._is_a_users(process)

    def _is_outside(self, process: str) -> bool:
        user = self._user(process)
        if self._folder(process) or user < _USERS_FROM or user in _OF_SERVICES:
            return False
        folder = f"{process}/task/{process}/fd"
        return any(self._link(f"{folder}/{name}") == _COMPUTES for name in islice(self._names(folder), FILES_MAX))

    def _is_a_users(self, process: str) -> bool:
        return self._user(process) >= _USERS_FROM

    def _user(self, process: str) -> int:
        """0: also where the kernel does not show it."""
        found = _USER.search(self._text(f"{process}/status"))
        return int(found[1]) if found else 0

    def _devices(self, process: str, threads: dict[int, ProcessStat]) -> frozenset[int]:
        """Minor numbers of GPUs; its first thread has none left if it has ended before others."""
        for number in (int(process), *threads):
            folder = f"{process}/task/{number}/fd"
            links = [self._link(f"{folder}/{name}") for name in islice(self._names(folder), FILES_MAX)]
            if found := frozenset(int(match[1]) for link in links if (match := _DEVICE.fullmatch(link))):
                return found
            if links:
                break
        return frozenset()

    def _stuck(self, process: str, command: str, known: Known, now: float) -> StuckProcess | None:
        late = [(sign.why, now - at, sign) for sign, at in known.since.items() if now - at >= LIMIT_SECONDS[sign.why]]
        if not late:
            return None
        why, seconds, sign = max(late, key=lambda one: (_says(one[0]), one[1]))
        folder = self._folder(process)
        where = self._text(f"{process}/task/{sign.thread}/wchan").strip()
        return StuckProcess(
            pid=int(process),
            user_id=self._user(process),
            command=printable(command, 64),
            why=why,
            seconds=round(seconds),
            where="" if where == "0" else printable(where, 64),
            gpus=self._bus_ids(known.devices),
            job_id=int(folder[4:]) if folder.startswith("job_") else None,
            age_seconds=self._age_seconds(known.started),
        )

    def _age_seconds(self, started_ticks: int) -> float | None:
        """None: the kernel does not show how long it has run."""
        uptime = self._text("uptime").split()
        return round(max(float(uptime[0]) - started_ticks / os.sysconf("SC_CLK_TCK"), 0.0)) if uptime else None

    def _bus_ids(self, devices: frozenset[int]) -> list[str]:
        places = {}
        for name in self._names("driver/nvidia/gpus"):
            if minor := _MINOR.search(self._text(f"driver/nvidia/gpus/{name}/information")):
                places[int(minor[1])] = normal_bus_id(name)
        return [places.get(one, f"nvidia{one}") for one in sorted(devices)]

    def _text(self, path: str) -> str:
        """Empty: the process has ended, or the kernel does not show it."""
        try:
            return (self._proc / path).read_text(errors="replace")
        except OSError:
            return ""

    def _names(self, path: str) -> list[str]:
        try:
            return [one.name for one in (self._proc / path).iterdir()]
        except OSError:
            return []

    def _link(self, path: str) -> str:
        try:
            return str((self._proc / path).readlink())
        except OSError:
            return ""
