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

from understudy_agent.launch import hub
from understudy_agent.launch.__main__ import main

HOME = Path(os.environ["BENCH_HOME"])
SLOWEST = 20


class Timed(selectors.DefaultSelector):
    """A pass is what happens between two waits."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []
        self._since: float | None = None
        self._cpu, self._at = time.process_time(), time.monotonic()
        signal.signal(signal.SIGUSR2, self.report)
        (HOME / "launcher.pid").write_text(str(os.getpid()))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._since is not None:
            self.turns.append(time.monotonic() - self._since)
        found = super().select(timeout)
        self._since = time.monotonic()
        return found

    def report(self, *_: Any) -> None:
        """Since the last report."""
        turns, seconds = sorted(self.turns), time.monotonic() - self._at
        used = time.process_time() - self._cpu
        report = {
            "turns": len(turns),
            "p50": turns[len(turns) // 2],
            "p99": turns[len(turns) * 99 // 100],
            "slowest": turns[-SLOWEST:],
            "cpu_share": used / seconds,
            "rss_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        (HOME / "turns.new").write_text(json.dumps(report))
        (HOME / "turns.new").rename(HOME / "turns.json")
        self.turns = []
        self._cpu, self._at = time.process_time(), time.monotonic()


if __name__ == "__main__":
    vars(hub)["selectors"] = type("Selectors", (), {**vars(selectors), "DefaultSelector": Timed})
    sys.exit(main())
