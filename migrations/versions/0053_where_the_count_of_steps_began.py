"""Of each attempt where its count of steps began: the numbers of its program may have fallen.

Revision ID: 0053
Revises: 0052
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempt", sa.Column("count_from", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("attempt", "count_from")
