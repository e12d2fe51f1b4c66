"""The weight in Slurm that a node was given for its probation, and the part numbers of GPUs' boards.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("node") as batch:
        batch.add_column(sa.Column("weight", sa.BigInteger(), nullable=True))
        batch.add_column(sa.Column("weight_before", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("gpu_seen") as batch:
        batch.add_column(sa.Column("board_part_number", sa.String(80), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("gpu_seen") as batch:
        batch.drop_column("board_part_number")
    with op.batch_alter_table("node") as batch:
        batch.drop_column("weight_before")
        batch.drop_column("weight")
