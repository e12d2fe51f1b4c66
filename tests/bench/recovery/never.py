"""What a side never recovered from: measured once, given up after the time that its own documents name, and kept.

Belongs here: the file of these results, with the day of each. Must not: results of Understudy's own sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests import REPOSITORY
from tests.bench.recovery.judge import UNDERSTUDY, Run

KEPT = REPOSITORY / "tests" / "data" / "bench" / "never_recovered.json"


@dataclass(frozen=True, slots=True)
class Never:
    side: str
    fault: str
    waited_seconds: float
    day: str
    remark: str

    def as_run(self) -> Run:
        return Run(self.side, self.fault, self.waited_seconds, remark=f"{self.remark} ({self.day})")


def read(path: Path = KEPT) -> list[Never]:
    return [Never(**one) for one in json.loads(path.read_text())] if path.exists() else []


def keep(runs: Iterable[Run], day: str, path: Path = KEPT) -> list[Never]:
    """Adds those that were given up. What has recovered in the end is in the file no longer."""
    known = {(one.side, one.fault): one for one in read(path)}
    for run in runs:
        if run.side.startswith(UNDERSTUDY):
            continue
        if run.to_first_step_seconds is None:
            known[run.side, run.fault] = Never(run.side, run.fault, run.waited_seconds, day, run.remark)
        else:
            known.pop((run.side, run.fault), None)
    found = [known[key] for key in sorted(known)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return found
