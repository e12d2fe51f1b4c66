"""What a checkpoint lies on: memory, a disk of its nodes, a shared file system, an object store.

Revision ID: 0042
Revises: 0041
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("tier", sa.String(16), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("checkpoint", "tier")
