"""Which machine an event is of, beside its boot: the driver's version and the set of GPUs.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLES = ("kernel_event", "hardware_event")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("driver_version", sa.String(64), server_default="", nullable=False))
        op.add_column(table, sa.Column("gpu_set", sa.String(16), server_default="", nullable=False))


def downgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("gpu_set")
            batch.drop_column("driver_version")
