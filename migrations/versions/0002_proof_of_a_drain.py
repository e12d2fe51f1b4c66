"""Who gave the reason of our drain, and when: the proof that it is ours.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("drain_user", sa.Text(), server_default="", nullable=False))
    op.add_column("node", sa.Column("drain_reason_at", sa.Text(), server_default="", nullable=False))
    op.add_column("node", sa.Column("drain_settled", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(sa.text("UPDATE node SET drain_settled = :yes WHERE drained_at IS NOT NULL").bindparams(yes=True))


def downgrade() -> None:
    op.drop_column("node", "drain_settled")
    op.drop_column("node", "drain_reason_at")
    op.drop_column("node", "drain_user")
