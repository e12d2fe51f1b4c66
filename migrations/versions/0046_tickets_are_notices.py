"""Tickets reach people as notices do: when a webhook of their own took them is remembered no more.

Revision ID: 0046
Revises: 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("ticket", "sent_at")


def downgrade() -> None:
    op.add_column("ticket", sa.Column("sent_at", sa.Double(), nullable=True))
