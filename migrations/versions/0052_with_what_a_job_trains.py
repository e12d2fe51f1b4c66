"""Of each job a sum of its program's name and arguments: another experiment has others.

Revision ID: 0052
Revises: 0051
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("run_arguments", sa.String(64), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("job", "run_arguments")
