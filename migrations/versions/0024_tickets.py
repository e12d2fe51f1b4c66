"""Who deals with a ticket.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ticket", sa.Column("acknowledged_at", sa.Double()))
    op.add_column("ticket", sa.Column("acknowledged_by", sa.String(255), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("ticket", "acknowledged_by")
    op.drop_column("ticket", "acknowledged_at")
