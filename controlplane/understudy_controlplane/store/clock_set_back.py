"""Times in the database after the control plane's clock was set back."""

from __future__ import annotations

from sqlalchemy import Engine, update

from understudy_controlplane.store import tables

STAMPS = (
    tables.node.c.since,
    tables.node.c.cleared_at,
    tables.node.c.drained_at,
    tables.suspicion.c.since,
    tables.kernel_event.c.received_at,
    tables.hardware_event.c.received_at,
    tables.job_refusal.c.received_at,
    tables.anomaly.c.received_at,
    tables.anomaly_clearance.c.at,
    tables.launch_end.c.received_at,
    tables.incident.c.opened_at,
    tables.recovery.c.decided_at,
    tables.recovery.c.ended_at,
    tables.recovery_step.c.intended_at,
    tables.recovery_step.c.done_at,
    tables.operator_intent.c.at,
    tables.site_signal.c.at,
)
"""Times of the control plane's own clock that are compared with each other or with now."""

SQUEEZE = 1e-4
"""An hour to come becomes the last 0.4 seconds: in their order, as far as a double distinguishes them."""


def set_times_back(engine: Engine, now: float, seconds: float) -> None:
    """The clock was set back by these seconds. Times later than `now` become now, in their order.

    Otherwise what is found within that time would count as older than what was found before: a node that was cleared
    a minute ago would have no faults for an hour. Raises StoreError.
    """
    with engine.begin() as connection:
        for stamp in STAMPS:
            was_now = now + seconds
            table = stamp.table
            connection.execute(update(table).where(stamp > now).values({stamp: now - (was_now - stamp) * SQUEEZE}))
