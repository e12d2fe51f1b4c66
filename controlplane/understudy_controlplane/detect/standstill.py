"""Whether a gang with ranks on a node makes no progress: the second signal of faults that a gang would not survive.

Or makes progress since: then the gang does not need what has failed, such as a second port, or a GPU of another job.
"""

from __future__ import annotations

from understudy_controlplane.detect.silence import PROGRESS_AGE_MAX_SECONDS, PROGRESS_MARGIN_SECONDS, step_seconds
from understudy_controlplane.fleet.finding import Signal
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


def fault_or_at_job_end(snapshot: Snapshot, node: str, since: float) -> Signal:
    """Of what has failed since then by the absence of a sign: a gang that finishes steps there all the same goes on to
    the end of its job.
    """
    for table in snapshot.tables.values():
        step = step_seconds(table)
        lately = snapshot.now - table.advanced_at < max(PROGRESS_AGE_MAX_SECONDS, STEPS_LATE * step)
        if node in table.nodes and lately and table.advanced_at > since + step + PROGRESS_MARGIN_SECONDS:
            return Signal.DRAIN_AT_JOB_END
    return Signal.HARDWARE_FAULT
