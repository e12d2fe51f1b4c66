"""Checkpoints: their shards are counted when they are stored, not when they are listed.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

OF_CHECKPOINT = "job, restart_count, launch, step, path, world_size"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "checkpoint",
        sa.Column("id", number, nullable=False),
        sa.Column("job", number, nullable=False),
        sa.Column("restart_count", number, nullable=False),
        sa.Column("launch", number, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("world_size", number, nullable=False),
        sa.Column("shards", number, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoint"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name="fk_checkpoint_job_job"),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "step",
            "path",
            "world_size",
            name="uq_checkpoint_job_restart_count_launch_step_path_world_size",
        ),
    )
    op.execute(
        f"INSERT INTO checkpoint ({OF_CHECKPOINT}, shards, size_bytes, at) "  # noqa: S608 - all of it is here
        f"SELECT {OF_CHECKPOINT}, COUNT(DISTINCT rank), SUM(size_bytes), MAX(at) FROM checkpoint_shard "
        f"WHERE rank < world_size GROUP BY {OF_CHECKPOINT} ORDER BY MIN(id)"
    )
    op.create_index("ix_checkpoint_at", "checkpoint", ["at", "id"])
    op.create_index("ix_checkpoint_shard_received_at", "checkpoint_shard", ["received_at"])


def downgrade() -> None:
    op.drop_index("ix_checkpoint_shard_received_at", "checkpoint_shard")
    op.drop_table("checkpoint")
