"""A checkpoint has a layout, and what it cost.

Revision ID: 0039
Revises: 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("layout", sa.String(16), server_default="", nullable=False))
    op.add_column("checkpoint", sa.Column("blocked_seconds", sa.Double()))
    op.add_column("checkpoint", sa.Column("write_seconds", sa.Double()))


def downgrade() -> None:
    for name in ("write_seconds", "blocked_seconds", "layout"):
        op.drop_column("checkpoint", name)
