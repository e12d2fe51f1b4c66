"""Distinguishes faults that stop a gang from those that it survives with ranks on the node: it makes no progress.

A gang that does has no need of what has failed, such as a second port, or a GPU of another job.
"""

from __future__ import annotations

from understudy_controlplane.detect.silence import PROGRESS_MARGIN_SECONDS, step_seconds
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import DrainKind
from understudy_controlplane.fleet.snapshot import Snapshot

STEPS_LATE = 3.0
"""A gang whose steps take long makes no progress when it is this many steps late."""

BEFORE_SECONDS = 30.0
"""A gang that stopped longer than this before the fault stopped for another reason."""


def stands_still(snapshot: Snapshot, node: str, seconds: float, fault_seconds: float) -> JobKey | None:
    """The gang that has finished no step for `seconds`, and stopped when a fault of `fault_seconds` ago began or later;
    None: there is none.
    """
    for job, table in snapshot.progress.tables.items():
        late = snapshot.now - table.advanced_at
        if node not in table.nodes or late < seconds:
            continue
        step = step_seconds(table)
        if STEPS_LATE * step <= late <= fault_seconds + step + BEFORE_SECONDS:
            return job
    return None


def fault_or_at_job_end(snapshot: Snapshot, node: str, since: float) -> Signal:
    """Signal of a fault that shows by the absence of a sign: gangs that have all finished a step there since do without
    it, and go on to the end of their jobs. However long they pause: hang detection judges that.
    """
    gangs = [job.key for job in snapshot.job_on(node) if job.managed]
    spared = gangs and all(_does_without(snapshot, gang, node, since) for gang in gangs)
    return Signal.DRAIN_AT_JOB_END if spared else Signal.HARDWARE_FAULT


def _does_without(snapshot: Snapshot, gang: JobKey, node: str, since: float) -> bool:
    table = snapshot.progress.tables.get(gang)
    if (table is None or not table.advanced_at) and since < snapshot.started_at:
        # What steps have shown to an earlier process of the control plane is in the node's record.
        record = snapshot.nodes[node].record
        return record.drain_kind is DrainKind.AT_JOB_END and record.since > since
    done_at = since + PROGRESS_MARGIN_SECONDS
    return table is not None and node in table.nodes and table.advanced_at > done_at + step_seconds(table)
