"""The step that orders a launcher to restart its gang is called "order_restart"; it was "tell_launcher".

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BEFORE, AFTER = "tell_launcher", "order_restart"


def upgrade() -> None:
    _rename(BEFORE, AFTER)


def downgrade() -> None:
    _rename(AFTER, BEFORE)


def _rename(old: str, new: str) -> None:
    step = sa.table("recovery_step", sa.column("name"))
    op.execute(sa.update(step).where(step.c.name == old).values(name=new))
    recovery = sa.table("recovery", sa.column("id"), sa.column("kind"), sa.column("plan", sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(recovery).where(recovery.c.kind == "allocation")).all():
        steps = [new if name == old else name for name in row.plan.get("steps", ())]
        connection.execute(sa.update(recovery).where(recovery.c.id == row.id).values(plan={**row.plan, "steps": steps}))
