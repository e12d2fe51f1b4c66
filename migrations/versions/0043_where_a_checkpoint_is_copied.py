"""Where a checkpoint on disks of nodes is copied.

Revision ID: 0043
Revises: 0042
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("copy_to", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("checkpoint", "copy_to")
