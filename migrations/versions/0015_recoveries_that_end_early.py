"""A recovery that is overtaken by facts, or cancelled, ends early: first what it had begun is undone.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in a batch, which might build the table again: other tables refer to it.
    op.add_column("recovery", sa.Column("ends_as", sa.String(32)))


def downgrade() -> None:
    op.drop_column("recovery", "ends_as")
