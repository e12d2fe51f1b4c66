"""The ranks that started in each world of a gang are counted when they are stored, not when a checkpoint is chosen.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "gang_world",
        sa.Column("id", number, nullable=False),
        sa.Column("job", number, nullable=False),
        sa.Column("restart_count", number, nullable=False),
        sa.Column("launch", number, nullable=False),
        sa.Column("world_size", number, nullable=False),
        sa.Column("ranks", number, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gang_world"),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name="fk_gang_world_job_job"),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "world_size", name="uq_gang_world_job_restart_count_launch_world_size"
        ),
    )
    op.execute(
        "INSERT INTO gang_world (job, restart_count, launch, world_size, ranks) "
        "SELECT job, restart_count, launch, world_size, COUNT(DISTINCT rank) FROM rank_start "
        "GROUP BY job, restart_count, launch, world_size"
    )


def downgrade() -> None:
    op.drop_table("gang_world")
