"""Recoveries that wait for an operator's approval.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("recovery", sa.Column("approve_by", sa.Double()))
    op.add_column("recovery", sa.Column("approved_at", sa.Double()))
    op.add_column("recovery", sa.Column("approved_by", sa.String(255), server_default="", nullable=False))


def downgrade() -> None:
    op.execute("UPDATE recovery SET status = 'superseded' WHERE status IN ('awaits_approval', 'approved', 'expired')")
    op.drop_column("recovery", "approved_by")
    op.drop_column("recovery", "approved_at")
    op.drop_column("recovery", "approve_by")
