"""Jobs that our Prolog kept off a node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_refusal",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_refusal")),
        sa.UniqueConstraint("node", "job_id", "at", name=op.f("uq_job_refusal_node_job_id_at")),
    )
    with op.batch_alter_table("job_refusal", schema=None) as batch_op:
        batch_op.create_index("ix_job_refusal_received_at", ["received_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("job_refusal", schema=None) as batch_op:
        batch_op.drop_index("ix_job_refusal_received_at")
    op.drop_table("job_refusal")
