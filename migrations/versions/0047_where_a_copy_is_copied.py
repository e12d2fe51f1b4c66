"""Where a copy of a checkpoint is copied in turn.

Revision ID: 0047
Revises: 0046
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("then_copy_to", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("checkpoint", "then_copy_to")
