"""What happened to parts of a node, as told by others than its kernel log.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hardware_event",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.UniqueConstraint(
            "node", "boot_id", "kind", "part", "at", name="uq_hardware_event_node_boot_id_kind_part_at"
        ),
    )
    op.create_index("ix_hardware_event_received_at", "hardware_event", ["received_at"])


def downgrade() -> None:
    op.drop_table("hardware_event")
