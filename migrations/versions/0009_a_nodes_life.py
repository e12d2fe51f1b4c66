"""A node's life: operators' requests about one node, tickets, and which GPU sat where.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("node") as batch:
        batch.add_column(sa.Column("past_boot_id", sa.String(64), server_default="", nullable=False))
    with op.batch_alter_table("operator_intent") as batch:
        batch.add_column(sa.Column("subject", sa.String(255), server_default="", nullable=False))
        batch.add_column(sa.Column("answered_at", sa.Double(), nullable=True))
    op.create_table(
        "ticket",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(255), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ticket")),
        sa.UniqueConstraint("label", name=op.f("uq_ticket_label")),
    )
    op.create_index("ix_ticket_node", "ticket", ["node"])
    op.create_table(
        "gpu_seen",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(64), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("serial", sa.String(64), server_default="", nullable=False),
        sa.Column("name", sa.String(255), server_default="", nullable=False),
        sa.Column("bus_id", sa.String(32), server_default="", nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("faults", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_seen")),
        sa.UniqueConstraint("uuid", "node", name=op.f("uq_gpu_seen_uuid_node")),
    )
    op.create_index("ix_gpu_seen_node", "gpu_seen", ["node"])
    op.create_index("ix_decision_action", "decision", ["action", "at"])
    op.create_index("ix_recovery_kind", "recovery", ["kind", "decided_at"])


def downgrade() -> None:
    op.drop_index("ix_recovery_kind", "recovery")
    op.drop_index("ix_decision_action", "decision")
    op.drop_table("gpu_seen")
    op.drop_table("ticket")
    with op.batch_alter_table("operator_intent") as batch:
        batch.drop_column("answered_at")
        batch.drop_column("subject")
    with op.batch_alter_table("node") as batch:
        batch.drop_column("past_boot_id")
