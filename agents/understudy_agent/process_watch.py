"""What the kernel shows of a rank's process while it finishes no step: its state, and since when it has done nothing.

Only files are read for which the kernel takes no lock that a process that hangs may hold. What its children compute is
its work: a compiler, or workers that load data. So is often being woken: a process that writes to slow storage computes
little. One that could run works as well, though it gets no processor, as on a node that others load.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from understudy_wire.process_stat import ProcessStat, read_stat
from understudy_wire.ranks import ProcessNow, ProcessState

IDLE_SHARE = 0.02
"""Most of a processor that the threads of a waiting process take: those of the hook, of gloo and of NCCL's watchdog."""

WAKES_PER_SECOND = 0.5
"""Most of the training thread while it waits: PyTorch's data loader looks at its workers every 5 s."""
FAMILY_MAX = 64

_STATES = {
    "R": ProcessState.RUNS,
    "S": ProcessState.SLEEPS,
    "D": ProcessState.BLOCKED,
    "T": ProcessState.STOPPED,
    "t": ProcessState.TRACED,
    "Z": ProcessState.GONE,
    "X": ProcessState.GONE,
}


@dataclass(frozen=True, slots=True)
class _Work:
    seconds: float = 0.0  # of a processor, of the process and those below it
    wakes: int = 0  # how often its training thread was given a processor
    can_run: bool = False  # the training thread, or that of a process below, runs or waits for a processor


@dataclass(slots=True)
class ProcessWatch:
    pid: int = 0  # 0: it lives where the agent cannot see it
    proc: Path = Path("/proc")
    _started: int | None = None  # ticks since boot
    _seen: _Work = _Work()
    _looked_at: float = 0.0
    _moved_at: float = 0.0

    def look(self, now: float | None = None) -> ProcessNow | None:
        """None: nothing is known of it yet."""
        if not self.pid:
            return None
        now = time.monotonic() if now is None else now
        try:
            stat = self._stat(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return ProcessNow(ProcessState.GONE)
        except OSError:
            return None
        if self._started not in (None, stat.started_ticks):  # another process has its number
            return ProcessNow(ProcessState.GONE)
        work, waited = self._work(), now - self._looked_at
        cpu, wakes = abs(work.seconds - self._seen.seconds), work.wakes - self._seen.wakes
        if self._started is None or cpu > IDLE_SHARE * waited or wakes > WAKES_PER_SECOND * waited or work.can_run:
            self._moved_at = now
        self._started, self._seen, self._looked_at = stat.started_ticks, work, now
        state = _STATES.get(stat.state, ProcessState.UNKNOWN)
        return ProcessNow(state, round(now - self._moved_at, 1))

    def _stat(self, pid: int) -> ProcessStat:
        return read_stat(self.proc / str(pid) / "stat")

    def _work(self) -> _Work:
        family, ticks, can_run = [self.pid], 0, False
        for pid in family:  # grows
            with contextlib.suppress(OSError):
                stat = self._stat(pid)
                can_run |= _STATES.get(stat.state) is ProcessState.RUNS
                ticks += stat.ran_ticks
                for thread in (self.proc / str(pid) / "task").iterdir():
                    family += map(int, (thread / "children").read_text().split())
                    del family[FAMILY_MAX:]
        wakes = "0"
        with contextlib.suppress(OSError, IndexError):
            wakes = (self.proc / str(self.pid) / "schedstat").read_text().split()[2]
        return _Work(ticks / os.sysconf("SC_CLK_TCK"), int(wakes), can_run)
