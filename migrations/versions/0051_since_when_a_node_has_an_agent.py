"""When the first agent of each node started: what the kernel logged before is history.

Revision ID: 0051
Revises: 0050
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("agent_since", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("node", "agent_since")
