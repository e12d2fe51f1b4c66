"""Where an attempt continues has three answers: a checkpoint, the beginning, or not known.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempt", sa.Column("restore_answer", sa.String(16)))
    op.execute(
        "UPDATE attempt SET restore_answer = CASE WHEN restore_path = '' THEN 'fresh' ELSE 'restore' END "
        "WHERE restore_step IS NOT NULL"
    )


def downgrade() -> None:
    op.drop_column("attempt", "restore_answer")
