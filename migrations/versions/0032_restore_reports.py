"""What ranks report of the checkpoint that they are to restore: it is there, it is not there, it cannot be restored.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "restore_report",
        sa.Column("id", number, nullable=False),
        sa.Column("job", number, nullable=False),
        sa.Column("restart_count", number, nullable=False),
        sa.Column("launch", number, nullable=False),
        sa.Column("rank", number, nullable=False),
        sa.Column("world_size", number, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_restore_report"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name="fk_restore_report_job_job"),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "rank",
            "path",
            "outcome",
            name="uq_restore_report_job_restart_count_launch_rank_path_outcome",
        ),
    )


def downgrade() -> None:
    op.drop_table("restore_report")
