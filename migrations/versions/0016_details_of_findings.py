"""What code needs of a finding is a typed detail: until now it was read from the evidence, which is for people.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

REPAIRS = ("none", "restart_app", "reset_gpu", "reboot", "manual_repair")


def upgrade() -> None:
    # Not in a batch, which might build the table again: other tables refer to it.
    op.add_column("incident", sa.Column("detail", sa.JSON()))
    op.add_column("incident_finding", sa.Column("detail", sa.JSON()))
    op.add_column("incident_finding", sa.Column("signal", sa.String(32), server_default="", nullable=False))
    connection = op.get_bind()
    for name in ("incident", "incident_finding"):
        columns = [sa.column("id"), sa.column("signal"), sa.column("evidence", sa.JSON), sa.column("detail", sa.JSON)]
        table = sa.table(name, *columns)
        for row in connection.execute(sa.select(table.c.id, table.c.signal, table.c.evidence)).all():
            values = {"detail": detail(row.evidence), "signal": row.signal or str(row.evidence.get("signal", ""))}
            connection.execute(sa.update(table).where(table.c.id == row.id).values(values))


def detail(evidence: dict[str, Any]) -> dict[str, Any] | None:
    """As `fleet.finding.HardwareDetail`. A reset needs the GPU's bus id or index; a bus id alone may be a switch's."""
    part, repair = str(evidence.get("bus_id") or ""), evidence.get("repair")
    gpu = part or evidence.get("gpu", "") if "gpu" in evidence or "xid" in evidence else ""
    found = {
        "kind": "hardware",
        "repair": repair if repair in REPAIRS else None,
        "part": part,
        "gpu": "" if gpu is None else str(gpu),
        "uuid": str(evidence.get("uuid") or ""),
        "boot_id": str(evidence.get("boot_id") or ""),
        "is_event": "sequence" in evidence,
    }
    return found if any(found[key] for key in ("repair", "part", "gpu", "uuid", "boot_id")) else None


def downgrade() -> None:
    op.drop_column("incident_finding", "signal")
    op.drop_column("incident_finding", "detail")
    op.drop_column("incident", "detail")
