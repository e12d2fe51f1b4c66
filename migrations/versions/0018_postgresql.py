"""Which control plane works on the database. On PostgreSQL whole numbers have 64 bits, as they always had on SQLite.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "holder",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_holder"),
    )
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    inspector = sa.inspect(connection)
    for table in inspector.get_table_names():
        for column in inspector.get_columns(table):
            if not isinstance(column["type"], sa.Integer) or isinstance(column["type"], sa.BigInteger):
                continue
            op.alter_column(table, column["name"], type_=sa.BigInteger())
            numbered_by = connection.execute(sa.select(sa.func.pg_get_serial_sequence(table, column["name"]))).scalar()
            if numbered_by:
                op.execute(f"ALTER SEQUENCE {numbered_by} AS bigint")


def downgrade() -> None:
    """Numbers keep their 64 bits: one may be too large for less."""
    op.drop_table("holder")
