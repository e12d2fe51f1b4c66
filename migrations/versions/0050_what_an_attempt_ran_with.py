"""Of each attempt the code, the configuration and the data that its training runs with, as far as they are known.

Revision ID: 0050
Revises: 0049
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

INPUTS = ("code", "config", "data")


def upgrade() -> None:
    for name in INPUTS:
        op.add_column("attempt", sa.Column(name, sa.String(255), nullable=False, server_default=""))


def downgrade() -> None:
    for name in INPUTS:
        op.drop_column("attempt", name)
