"""An index for the jobs of a user, by their id.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_job_user_id", "job", ["user_id", "id"])


def downgrade() -> None:
    op.drop_index("ix_job_user_id", "job")
