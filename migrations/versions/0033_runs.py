"""A run has a name that outlives its jobs.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("run_name", sa.String(255), nullable=False, server_default=""))
    op.add_column("job", sa.Column("run_folder", sa.Text, nullable=False, server_default=""))
    op.create_index("ix_job_run_name", "job", ["run_name", "user_id"])


def downgrade() -> None:
    op.drop_index("ix_job_run_name", "job")
    op.drop_column("job", "run_folder")
    op.drop_column("job", "run_name")
