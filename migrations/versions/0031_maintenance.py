"""Maintenance: planned work on nodes.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "maintenance",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("targets", sa.JSON, nullable=False),
        sa.Column("nodes", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("at_once", NUMBER, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("stages", sa.JSON, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("closed_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_maintenance"),
    )
    op.create_index("ix_maintenance_closed_at", "maintenance", ["closed_at"])


def downgrade() -> None:
    op.drop_table("maintenance")
