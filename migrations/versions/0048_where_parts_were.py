"""Which board, network card or module was seen in which node.

Revision ID: 0048
Revises: 0047
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "part_seen",
        sa.Column("id", NUMBER, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("identity", sa.String(128), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("place", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_part_seen")),
        sa.UniqueConstraint("identity", "kind", "node", name=op.f("uq_part_seen_identity_kind_node")),
    )
    op.create_index("ix_part_seen_node", "part_seen", ["node"])
    op.create_index("ix_part_seen_last_seen_at", "part_seen", ["last_seen_at", "id"])


def downgrade() -> None:
    op.drop_table("part_seen")
