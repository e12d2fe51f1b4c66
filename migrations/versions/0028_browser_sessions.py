"""Browser sessions: a row of `token` that names the token from which it was made.

Revision ID: 0028
Revises: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("token", sa.Column("session_of", sa.BigInteger))
    op.create_index("ix_token_session_of", "token", ["session_of"])


def downgrade() -> None:
    op.execute("DELETE FROM token WHERE session_of IS NOT NULL")
    op.drop_index("ix_token_session_of", "token")
    op.drop_column("token", "session_of")
