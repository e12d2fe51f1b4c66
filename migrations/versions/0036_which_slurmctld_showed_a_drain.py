"""Which slurmctld has shown a drain: a control plane that was away cannot know from the times whether a crash lost it.

Revision ID: 0036
Revises: 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("drained_under", sa.Double()))


def downgrade() -> None:
    op.drop_column("node", "drained_under")
