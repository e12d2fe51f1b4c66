"""Tokens, by digest: who may send requests, and with which role.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("made_by", sa.String(255), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("revoked_by", sa.String(255), server_default="", nullable=False),
        sa.Column("last_used_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("digest", name="uq_token_digest"),
    )
    op.create_index("ix_token_node", "token", ["node"])
    op.create_index("ix_token_revoked_at", "token", ["revoked_at"])


def downgrade() -> None:
    op.drop_table("token")
