"""Where a checkpoint on disks of nodes is copied.

Revision ID: 0044
Revises: 0043
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("copy_to", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("checkpoint", "copy_to")
