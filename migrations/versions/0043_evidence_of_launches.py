"""What the ranks of a launch showed before they were ended.

Revision ID: 0043
Revises: 0042
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "launch_evidence",
        sa.Column("id", number, nullable=False),
        sa.Column("job", number, nullable=False),
        sa.Column("restart_count", number, nullable=False),
        sa.Column("launch", number, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_launch_evidence_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch_evidence")),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "kind", name=op.f("uq_launch_evidence_job_restart_count_launch_kind")
        ),
    )
    op.create_index("ix_launch_evidence_received_at", "launch_evidence", ["received_at"])


def downgrade() -> None:
    op.drop_table("launch_evidence")
