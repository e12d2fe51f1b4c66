"""Results of the stages of validations.

Revision ID: 0038
Revises: 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "stage_result",
        sa.Column("id", number, nullable=False),
        sa.Column("recovery", number, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("pass_mark", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_stage_result_recovery_recovery")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stage_result")),
        sa.UniqueConstraint("recovery", "node", "stage", name=op.f("uq_stage_result_recovery_node_stage")),
    )
    op.create_index("ix_stage_result_node", "stage_result", ["node", "stage", "id"])


def downgrade() -> None:
    op.drop_table("stage_result")
