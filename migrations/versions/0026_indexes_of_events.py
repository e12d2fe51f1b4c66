"""When recoveries and their steps ended, for the stream of events.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_recovery_ended_at", "recovery", ["ended_at"])
    op.create_index("ix_recovery_step_done_at", "recovery_step", ["done_at"])


def downgrade() -> None:
    op.drop_index("ix_recovery_step_done_at", "recovery_step")
    op.drop_index("ix_recovery_ended_at", "recovery")
