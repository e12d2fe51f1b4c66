"""Values that a training should not have, who answers for checkpoints all the same, why a restore point was chosen.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "anomaly",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("launch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.String(length=64), nullable=False),
        sa.Column("usual", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_anomaly_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anomaly")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "rank",
            "kind",
            "step",
            "until",
            name=op.f("uq_anomaly_job_restart_count_launch_rank_kind_step_until"),
        ),
    )
    op.create_index("ix_anomaly_received_at", "anomaly", ["received_at"], unique=False)
    op.create_table(
        "anomaly_clearance",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_anomaly_clearance_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anomaly_clearance")),
    )
    op.create_index("ix_anomaly_clearance_job", "anomaly_clearance", ["job"], unique=False)
    with op.batch_alter_table("attempt") as batch:
        batch.add_column(sa.Column("restore_why", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("attempt") as batch:
        batch.drop_column("restore_why")
    op.drop_index("ix_anomaly_clearance_job", "anomaly_clearance")
    op.drop_table("anomaly_clearance")
    op.drop_index("ix_anomaly_received_at", "anomaly")
    op.drop_table("anomaly")
