"""What else an operator's request names, such as the nodes that a gang leaves.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("operator_intent", sa.Column("detail", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("operator_intent", "detail")
