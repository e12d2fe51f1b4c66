"""What was measured by one stage, newest first, is found without looking through that of the others.

Revision ID: 0049
Revises: 0048
"""

from __future__ import annotations

from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_stage_result_stage", "stage_result", ["stage", "id"])


def downgrade() -> None:
    op.drop_index("ix_stage_result_stage", "stage_result")
