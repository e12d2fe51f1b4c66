"""Nodes that get no token until an administrator allows them again.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "barred_node",
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_barred_node"),
    )


def downgrade() -> None:
    op.drop_table("barred_node")
