"""What people are notified of, and the messages to each receiver.

Revision ID: 0041
Revises: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "notice",
        sa.Column("id", number, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("number", number, nullable=False),
        sa.Column("importance", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("page", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("over_at", sa.Double(), nullable=True),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice")),
        sa.UniqueConstraint("source", "number", name=op.f("uq_notice_source_number")),
    )
    op.create_index("ix_notice_stage", "notice", ["stage"])
    op.create_index("ix_notice_at", "notice", ["at"])
    op.create_index("ix_notice_over_at", "notice", ["over_at"])
    op.create_table(
        "message",
        sa.Column("id", number, nullable=False),
        sa.Column("receiver", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("notices", sa.JSON(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("importance", sa.String(16), nullable=False),
        sa.Column("revision", number, nullable=False),
        sa.Column("accepted", number, nullable=False),
        sa.Column("tries", number, nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_message")),
    )
    op.create_index("ix_message_closed", "message", ["closed"])
    op.create_index("ix_message_made_at", "message", ["made_at"])
    op.create_index("ix_message_accepted_at", "message", ["receiver", "accepted_at"])


def downgrade() -> None:
    op.drop_table("message")
    op.drop_table("notice")
