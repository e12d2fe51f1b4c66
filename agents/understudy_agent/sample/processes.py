"""Processes that have a GPU open and neither end nor continue: they keep its memory.

- A thread that waits in the kernel for two minutes without a context switch (state D): the kernel's own measure of a
  hung task (`check_hung_task` of kernel/hung_task.c).
- A thread that SIGKILL does not end: the signal is pending, or the thread is ending (PF_EXITING). While a core is
  written the other threads of its process wait for that, ending, and are not stuck.
- A zombie whose other threads live.

A process that ends closes its files before it waits for the driver, so what it has open is read early, and again at
ever longer intervals while it has no GPU. Files that can wait for a lock of a process that hangs (its command line,
environment, maps and stack) are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from understudy_wire.hardware import STUCK_PROCESSES_MAX, Stuck, StuckProcess
from understudy_wire.pci import normal_bus_id
from understudy_wire.values import printable

LIMIT_SECONDS = {Stuck.KILLED: 30.0, Stuck.WAITING: 120.0, Stuck.ZOMBIE: 120.0}
"""Freeing the memory of a large process takes seconds; 120 s is the kernel's default for a hung task."""

THREADS_MAX = 20_000
"""Threads that are read each time. Of processes beyond only the first thread is read."""
FILES_MAX = 4096

_SIGKILL = 1 << 8
_EXITING, _KERNEL = 0x4, 0x20_0000  # PF_EXITING and PF_KTHREAD of include/linux/sched.h
_DEVICE = re.compile(r"/dev/nvidia(\d{1,4})")
_MINOR = re.compile(r"^Device Minor:\s+(\d+)", re.MULTILINE)
_PENDING = re.compile(r"^S(?:ig|hd)Pnd:\s+([0-9a-f]+)", re.MULTILINE)
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_USER = re.compile(r"^Uid:\s+(\d+)", re.MULTILINE)
_JOB = re.compile(r"/job_(\d{1,9})(?:/|$)", re.MULTILINE)
"""Cgroup of a job: src/plugins/cgroup of Slurm 22.05 to 26.05, v1 and v2."""


@dataclass(frozen=True, slots=True)
class Thread:
    command: str
    state: str
    flags: int
    threads: int  # of its process
    started: int


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
        """The longest first. `now` is of a monotonic clock."""
        left, there, found = THREADS_MAX, {}, []
        for name in filter(str.isdigit, self._names(".")):
            first = self._thread(f"{name}/stat")
            if first is None or first.flags & _KERNEL:
                continue
            known = self._known.get(int(name))
            there[int(name)] = known = known if known and known.started == first.started else Known(first.started)
            known.readings += 1
            threads = self._threads(name, first, left)
            left -= len(threads)
            signs = [sign for number, one in threads.items() if (sign := self._sign(name, number, one, first.threads))]
            known.since = {sign: known.since.get(sign, now) for sign in signs}
            is_due = known.readings > 1 and known.readings & (known.readings - 1) == 0  # 2, 4, 8, …
            if not known.devices and (signs or is_due):
                known.devices = self._devices(name, threads)
            if known.devices and (stuck := self._stuck(name, first.command, known, now)):
                found.append(stuck)
        self._known = there
        return sorted(found, key=lambda one: -one.seconds)[:STUCK_PROCESSES_MAX]

    def _threads(self, process: str, first: Thread, left: int) -> dict[int, Thread]:
        if not 1 < first.threads <= left:
            return {int(process): first}
        found = {int(name): self._thread(f"{process}/task/{name}/stat") for name in self._names(f"{process}/task")}
        return {number: one for number, one in found.items() if one is not None}

    def _thread(self, path: str) -> Thread | None:
        head, _, tail = self._text(path).rpartition(")")
        fields = tail.split()
        if len(fields) < 20:
            return None
        return Thread(head.partition("(")[2], fields[0], int(fields[6]), int(fields[17]), int(fields[19]))

    def _sign(self, process: str, number: int, thread: Thread, threads: int) -> Sign | None:
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

    def _devices(self, process: str, threads: dict[int, Thread]) -> frozenset[int]:
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
        why, seconds, sign = max(late, key=lambda one: (one[0] is Stuck.KILLED, one[1]))
        job = _JOB.search(self._text(f"{process}/cgroup"))
        user = _USER.search(self._text(f"{process}/status"))
        where = self._text(f"{process}/task/{sign.thread}/wchan").strip()
        return StuckProcess(
            pid=int(process),
            user_id=int(user[1]) if user else 0,
            command=printable(command, 64),
            why=why,
            seconds=round(seconds),
            where="" if where == "0" else printable(where, 64),
            gpus=self._bus_ids(known.devices),
            job_id=int(job[1]) if job else None,
        )

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
