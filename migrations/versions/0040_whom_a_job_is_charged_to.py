"""A job has an account and a partition.

Revision ID: 0040
Revises: 0039
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("account", sa.Text(), server_default="", nullable=False))
    op.add_column("job", sa.Column("partition", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    for name in ("partition", "account"):
        op.drop_column("job", name)
