"""What launchers tell: how each launch of a gang began, and how it ended.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "launch_start",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("launch", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("seats", sa.JSON(), nullable=False),
        sa.Column("spares", sa.JSON(), nullable=False),
        sa.Column("lost", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name="fk_launch_start_job_job"),
        sa.PrimaryKeyConstraint("id", name="pk_launch_start"),
        sa.UniqueConstraint("job", "restart_count", "launch", "at", name="uq_launch_start_job_restart_count_launch_at"),
    )
    op.create_table(
        "launch_end",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("launch", sa.Integer(), nullable=False),
        sa.Column("table_row", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("progressed", sa.Boolean(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("failed_node", sa.String(length=255), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("blamed", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name="fk_launch_end_job_job"),
        sa.PrimaryKeyConstraint("id", name="pk_launch_end"),
        sa.UniqueConstraint("job", "restart_count", "launch", "at", name="uq_launch_end_job_restart_count_launch_at"),
    )
    op.create_index("ix_launch_end_received_at", "launch_end", ["received_at"])


def downgrade() -> None:
    op.drop_index("ix_launch_end_received_at", "launch_end")
    op.drop_table("launch_end")
    op.drop_table("launch_start")
