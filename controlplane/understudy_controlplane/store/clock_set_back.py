"""Times in the database after the control plane's clock was set back."""

from __future__ import annotations

from sqlalchemy import Engine, func, select, update

from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import reading

STAMPS = (
    tables.node.c.since,
    tables.node.c.cleared_at,
    tables.node.c.vouched_at,
    tables.node.c.drained_at,
    tables.node.c.agent_since,
    tables.suspicion.c.since,
    tables.kernel_event.c.received_at,
    tables.hardware_event.c.received_at,
    tables.job_refusal.c.received_at,
    tables.anomaly.c.received_at,
    tables.anomaly_clearance.c.at,
    tables.restore_report.c.received_at,
    tables.launch_end.c.received_at,
    tables.launch_evidence.c.received_at,
    tables.incident.c.opened_at,
    tables.recovery.c.decided_at,
    tables.recovery.c.ended_at,
    tables.recovery_step.c.intended_at,
    tables.recovery_step.c.done_at,
    tables.request.c.at,
    tables.site_signal.c.at,
    tables.notice.c.at,
    tables.notice.c.over_at,
    tables.message.c.due_at,
    tables.message.c.accepted_at,
)
"""Times of the control plane's own clock that are compared with each other or with now."""

SQUEEZE = 1e-4
"""An hour to come becomes the last 0.4 seconds: in their order, as far as a double distinguishes them."""


OF_NODES = (tables.node.c.since, tables.node.c.cleared_at, tables.node.c.drained_at)


def seconds_ahead(engine: Engine, now: float) -> float:
    """Seconds by which the newest time of a node is later than `now`: the clock was set back while no control plane
    ran. Raises StoreError.
    """
    with reading(engine) as connection:
        newest = connection.execute(select(*(func.max(one) for one in OF_NODES))).one()
    return max([at - now for at in newest if at is not None and at > now], default=0.0)


def set_times_back(engine: Engine, now: float, seconds: float) -> None:
    """The clock was set back by these seconds. Times later than `now` become now, in their order.

    Otherwise what is found within that time would count as older than what was found before: a node that was cleared
    a minute ago would have no faults for an hour. Raises StoreError.
    """
    with engine.begin() as connection:
        for stamp in STAMPS:
            was_now = now + seconds
            table = stamp.table
            later = stamp > now
            if stamp is tables.request.c.at:
                # A pause is of the job that was submitted before it, and Slurm's time of that does not change.
                later &= tables.request.c.verb != Verb.PAUSE_JOB.value
            connection.execute(update(table).where(later).values({stamp: now - (was_now - stamp) * SQUEEZE}))
