"""Whether a gang with ranks on a node makes no progress: the second signal of faults that a gang would not survive."""

from __future__ import annotations

from understudy_controlplane.detect.silence import step_seconds
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.snapshot import Snapshot

STEPS_LATE = 3.0
"""A gang whose steps take long makes no progress when it is this many steps late."""

BEFORE_SECONDS = 30.0
"""A gang that stopped longer than this before the fault stopped for another reason."""


def stands_still(snapshot: Snapshot, node: str, seconds: float, fault_seconds: float) -> JobKey | None:
    """The gang that has finished no step for `seconds`, and stopped when a fault of `fault_seconds` ago began or later;
    None: there is none.
    """
    for job, table in snapshot.tables.items():
        late = snapshot.now - table.advanced_at
        if node not in table.nodes or late < seconds:
            continue
        step = step_seconds(table)
        if STEPS_LATE * step <= late <= fault_seconds + step + BEFORE_SECONDS:
            return job
    return None
