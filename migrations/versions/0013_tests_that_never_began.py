"""Whether a recovery's job on its node never ran: until now that was read from the words of its failed step.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in a batch, which might build the table anew: other tables refer to it.
    op.add_column("recovery", sa.Column("never_began", sa.Boolean(), server_default=sa.false(), nullable=False))
    recovery = sa.table("recovery", sa.column("id"), sa.column("never_began"))
    step = sa.table(
        "recovery_step", *(sa.column(name) for name in ("recovery", "position", "name", "status", "detail"))
    )
    failed, job = step.alias("failed"), step.alias("job")
    waited_or_refused = sa.or_(failed.c.detail.startswith("did not start:"), failed.c.detail.startswith("tried "))
    never_began = (
        sa.select(failed.c.recovery)
        .join(job, job.c.recovery == failed.c.recovery)
        .where(failed.c.status == "failed", job.c.name.in_(("reset_gpu", "run_validation")))
        .where(
            sa.or_(
                failed.c.position < job.c.position,
                sa.and_(failed.c.position == job.c.position, waited_or_refused),
            )
        )
    )
    op.execute(sa.update(recovery).where(recovery.c.id.in_(never_began)).values(never_began=sa.true()))


def downgrade() -> None:
    op.drop_column("recovery", "never_began")
