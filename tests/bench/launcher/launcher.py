"""`understudy run` as it is, that also notes what each pass of its loop takes: BENCH_HOME/turns.json on SIGUSR2."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from understudy_launcher import hub
from understudy_launcher.__main__ import main

HOME = Path(os.environ["BENCH_HOME"])
SLOWEST = 20


class Timed(selectors.DefaultSelector):
    """A pass is what happens between two waits."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []
        self.computed: list[float] = []
        """What each of them computed. On a busy machine a pass takes longer, as it waits for a processor."""
        self._since: tuple[float, float] | None = None
        self._cpu, self._at = time.process_time(), time.monotonic()
        signal.signal(signal.SIGUSR2, self.report)
        (HOME / "launcher.pid").write_text(str(os.getpid()))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._since is not None:
            self.turns.append(time.monotonic() - self._since[0])
            self.computed.append(time.thread_time() - self._since[1])
        found = super().select(timeout)
        self._since = time.monotonic(), time.thread_time()
        return found

    def report(self, *_: Any) -> None:
        """Since the last report."""
        turns, computed, seconds = sorted(self.turns), sorted(self.computed), time.monotonic() - self._at
        used = time.process_time() - self._cpu
        report = {
            "turns": len(turns),
            "p50": turns[len(turns) // 2],
            "p99": turns[len(turns) * 99 // 100],
            "computed_p99": computed[len(computed) * 99 // 100],
            "slowest": turns[-SLOWEST:],
            "cpu_share": used / seconds,
            "rss_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        (HOME / "turns.new").write_text(json.dumps(report))
        (HOME / "turns.new").rename(HOME / "turns.json")
        self.turns, self.computed = [], []
        self._cpu, self._at = time.process_time(), time.monotonic()


if __name__ == "__main__":
    vars(hub)["selectors"] = type("Selectors", (), {**vars(selectors), "DefaultSelector": Timed})
    sys.exit(main())
