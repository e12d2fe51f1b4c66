"""The address that the owner of a job chose for messages about it.

Revision ID: 0045
Revises: 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("notice", "message"):
        op.add_column(table, sa.Column("mail", sa.String(320), nullable=False, server_default=""))


def downgrade() -> None:
    for table in ("notice", "message"):
        op.drop_column(table, "mail")
